//! What a route is. The routes themselves are in `routes`.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::types::{AgentId, AlertId, HoldId, Problem, ProposalName, SilenceId, WorkerId};
use crate::{Method, Status};

/// A question and its answer: one method and path, with the types of both bodies.
pub trait Route: 'static {
    /// What the path names: [`NoTarget`], or by its id a worker, an agent, an alert and the like.
    type Target: Target;
    /// The body of the question.
    type Request: Serialize + DeserializeOwned + JsonSchema + Send;
    /// The body of a granted answer.
    type Response: Serialize + DeserializeOwned + JsonSchema + Send;
    /// How it is asked.
    const METHOD: Method;
    /// Where; `{id}` stands for the target.
    const PATH: &'static str;
    /// The status of a granted answer.
    const SUCCESS: Status;
    /// Who may ask it.
    const ASKER: Asker;
}

/// Who may ask something. Each operator's role may ask what the ones before it may; an agent is none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Asker {
    /// The agent behind the socket.
    Agent,
    /// Whoever may look.
    Viewer,
    /// Whoever may also act on agents.
    Operator,
    /// Whoever may also change what binds everybody.
    Admin,
}

/// What a path names besides the route.
pub trait Target: Sized + Send + sealed::Sealed {
    /// Reads what stood in the place of `{id}`.
    fn from_path(segment: Option<&str>) -> Result<Self, Problem>;

    /// Its schema, where a path has one.
    fn schema(generator: &mut SchemaGenerator) -> Option<Schema>;
}

/// What a path names.
pub trait Named: Target {
    /// What stands in the place of `{id}`.
    fn segment(&self) -> &str;
}

/// The path names nothing but the route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoTarget;

impl Target for NoTarget {
    fn from_path(_: Option<&str>) -> Result<Self, Problem> {
        Ok(Self)
    }

    fn schema(_: &mut SchemaGenerator) -> Option<Schema> {
        None
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::NoTarget {}
}

macro_rules! named {
    ($($name:ident: $code:literal, $what:literal, $lists:literal;)+) => {$(
        impl sealed::Sealed for $name {}

        impl Target for $name {
            fn from_path(segment: Option<&str>) -> Result<Self, Problem> {
                Self::new(segment.unwrap_or_default()).map_err(|error| {
                    Problem::new($code, format!(concat!("the path holds no ", $what, ": {}"), error))
                        .hint(concat!("`", $lists, "` lists them"))
                })
            }

            fn schema(generator: &mut SchemaGenerator) -> Option<Schema> {
                Some(generator.subschema_for::<Self>())
            }
        }

        impl Named for $name {
            fn segment(&self) -> &str {
                self.as_str()
            }
        }
    )+};
}

// The code is the same for all of them, as it always was.
named! {
    WorkerId: "bad_worker_id", "worker id", "belljar replication workers";
    AgentId: "bad_worker_id", "agent's id", "belljar ps";
    AlertId: "bad_worker_id", "alert's number", "belljar monitor alerts";
    SilenceId: "bad_worker_id", "silence's number", "belljar monitor silences";
    HoldId: "bad_worker_id", "held call's name", "belljar mcp holds";
    ProposalName: "bad_worker_id", "proposal's name", "belljar evolve list";
}

/// Whom a socket is for. Each side has routes of its own, and no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The agent behind the socket.
    Agent,
    /// Whoever may open the operator's socket.
    Operator,
}

impl Side {
    /// The side's routes.
    #[must_use]
    pub fn routes(self) -> &'static [RouteInfo] {
        match self {
            Self::Agent => crate::routes::AGENT_ROUTES,
            Self::Operator => crate::routes::OPERATOR_ROUTES,
        }
    }
}

/// A route as data: a line of the table that serving, asking and OpenAPI share.
#[derive(Clone, Copy, Debug)]
pub struct RouteInfo {
    /// Its name in Rust.
    pub name: &'static str,
    /// How it is asked.
    pub method: Method,
    /// Where; `{id}` stands for the id of what it is about.
    pub path: &'static str,
    /// What it does.
    pub doc: &'static str,
    /// The status of a granted answer.
    pub success: Status,
    /// Who may ask it.
    pub asker: Asker,
    /// The schema of what the path names.
    pub target: fn(&mut SchemaGenerator) -> Option<Schema>,
    /// The schema of the question.
    pub request: fn(&mut SchemaGenerator) -> Schema,
    /// Whether the question may come without a body.
    pub body_is_optional: fn() -> bool,
    /// The schema of the answer.
    pub response: fn(&mut SchemaGenerator) -> Schema,
}

impl RouteInfo {
    pub(crate) const fn of<R: Route>(name: &'static str, doc: &'static str) -> Self {
        Self {
            name,
            doc,
            method: R::METHOD,
            path: R::PATH,
            success: R::SUCCESS,
            asker: R::ASKER,
            target: <R::Target as Target>::schema,
            request: SchemaGenerator::subschema_for::<R::Request>,
            body_is_optional: || crate::json::read_request::<R::Request>(b"").is_ok(),
            response: SchemaGenerator::subschema_for::<R::Response>,
        }
    }
}

/// A path that is on the table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found<'a> {
    /// Which line of the table.
    pub(crate) index: usize,
    /// What stands in the place of `{id}`.
    pub(crate) target: Option<&'a str>,
    /// What stands behind the `?`.
    pub(crate) query: &'a str,
}

/// Why a path is not on the table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotFound {
    Path,
    /// The path is there under another method.
    Method {
        allowed: Vec<Method>,
    },
}

impl NotFound {
    /// As whoever asked is told.
    pub(crate) fn told(&self, method: &str) -> (Status, Problem) {
        match self {
            Self::Path => (
                Status::NOT_FOUND,
                Problem::new("not_found", "there is nothing at this path"),
            ),
            Self::Method { .. } => (
                Status::METHOD_NOT_ALLOWED,
                Problem::new(
                    "method_not_allowed",
                    format!("{method} is not a method of this path"),
                ),
            ),
        }
    }
}

pub(crate) fn find<'a>(
    routes: &[RouteInfo],
    method: &str,
    path: &'a str,
) -> Result<Found<'a>, NotFound> {
    let mut allowed = Vec::new();
    // Only what is read has a query: whoever changes something says how in the body.
    let (path, query) = match path.split_once('?') {
        Some((path, query)) if method == Method::Get.as_str() => (path, query),
        _ => (path, ""),
    };
    for (index, route) in routes.iter().enumerate() {
        let Some(target) = matches(route.path, path) else {
            continue;
        };
        if route.method.as_str() == method {
            return Ok(Found {
                index,
                target,
                query,
            });
        }
        allowed.push(route.method);
    }
    Err(if allowed.is_empty() {
        NotFound::Path
    } else {
        NotFound::Method { allowed }
    })
}

/// `Some` on a match, with what stands in the place of `{id}`.
fn matches<'a>(pattern: &str, path: &'a str) -> Option<Option<&'a str>> {
    let Some((before, after)) = pattern.split_once("{id}") else {
        return (pattern == path).then_some(None);
    };
    let target = path.strip_prefix(before)?.strip_suffix(after)?;
    (!target.contains('/')).then_some(Some(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_matched_whole() {
        let routes = Side::Operator.routes();
        let found = find(routes, "POST", "/v1/workers/w1/kill").map(|found| found.target);
        assert_eq!(found, Ok(Some("w1")));
        for path in [
            "/v1/workers/w1/kill/",
            "/v1/workers/a/b/kill",
            "/v1/status/",
            "/v1/Status",
            "//v1/status",
            "/v1/status?x",
            "",
            "*",
        ] {
            assert_eq!(find(routes, "POST", path), Err(NotFound::Path), "{path}");
        }
        let wrong = find(routes, "PUT", "/v1/kill-switch");
        let allowed = vec![Method::Get, Method::Post];
        assert_eq!(wrong, Err(NotFound::Method { allowed }));
    }

    #[test]
    fn no_two_routes_are_the_same() {
        for side in [Side::Agent, Side::Operator] {
            let routes = side.routes();
            for (at, route) in routes.iter().enumerate() {
                let sample = route.path.replace("{id}", "w1");
                let found = find(routes, route.method.as_str(), &sample);
                assert_eq!(found.map(|found| found.index), Ok(at), "{}", route.path);
            }
        }
    }
}
