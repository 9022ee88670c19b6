//! What holders of tokens may start. The owner of the local socket is not held to it: whoever opens that is the daemon's own user.

use std::path::{Path, PathBuf};

use belljar_api::{Problem, Status};
use belljar_policy::{Capability, Excess, Places};

use super::starting::{capability, settle};
use super::{AgentSpec, Inner};
use crate::fleet::Refused;
use crate::places::find_places;

/// Who asks something of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorIdentity {
    /// Whoever may open the local socket: the daemon's own user.
    Owner,
    /// A rule of the owner's.
    Rule(String),
    /// The holder of a token.
    Token {
        /// As records name them.
        name: String,
        /// Whether the token's role is the highest.
        is_admin: bool,
    },
}

impl OperatorIdentity {
    /// As records name them.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Owner => crate::fleet::OWNER,
            Self::Rule(name) | Self::Token { name, .. } => name,
        }
    }
}

/// What holders of tokens may start.
#[derive(Clone, Debug, Default)]
pub struct ApiCeiling {
    /// Below which directories; `workspaces` of the state directory where there are none.
    pub workspaces: Vec<PathBuf>,
    /// The most that may be granted; the shipped profile `moderate` where absent.
    pub ceiling: Option<Capability>,
    /// The same for admins; `ceiling` where absent.
    pub admin_ceiling: Option<Capability>,
}

impl ApiCeiling {
    fn of(&self, is_admin: bool) -> Option<Capability> {
        let own = self.admin_ceiling.as_ref().filter(|_| is_admin);
        let said = own.or(self.ceiling.as_ref()).cloned();
        said.or_else(|| belljar_manifest::profile("moderate"))
    }
}

impl Inner {
    /// Refuses what an actor may not have started. What is let in is let in for the place that was looked at.
    pub(super) fn check_ceiling(
        &self,
        by: &OperatorIdentity,
        spec: &mut AgentSpec,
    ) -> Result<(), Refused> {
        let OperatorIdentity::Token { is_admin, .. } = by else {
            settle(spec);
            return Ok(());
        };
        let settings = &self.settings.api;
        let work = spec.workdir.clone().map_or_else(std::env::current_dir, Ok);
        let work = work.map_err(|error| refused(format!("its workdir: {error}"), USE_WORKSPACE))?;
        if !work.is_absolute() {
            let said = format!("the workdir {} is not absolute", work.display());
            return Err(refused(said, USE_WORKSPACE));
        }
        let found = find_places(&work);
        let (principal, places) =
            found.map_err(|error| refused(error.to_string(), USE_WORKSPACE))?;
        self.check_workspace(&places.work)?;
        if rustix::process::geteuid().is_root() && principal.identity.owner_uid == 0 {
            let said = format!(
                "{} is root's, and so would be whatever it writes",
                places.work.display()
            );
            return Err(refused(
                said,
                "give the workspace to an ordinary user: chown",
            ));
        }
        let ceiling = settings.of(*is_admin);
        let ceiling = ceiling.ok_or_else(|| refused("there is no profile moderate".into(), ""))?;
        within(&ceiling, &capability(spec)?, &places)?;
        for (name, text) in &spec.servers.texts {
            let server = belljar_manifest::parse_capability(name, text.as_bytes());
            let server = server.map_err(|error| {
                let problem = Problem::new("invalid_capability", error.to_string());
                let hint = error.hint.clone().unwrap_or_default();
                Refused(Status::BAD_REQUEST, problem.hint(hint))
            })?;
            within(&ceiling, &server, &places)?;
        }
        spec.workdir = Some(places.work);
        Ok(())
    }

    /// `work` has no symbolic link in it, nor have the places it is compared with.
    fn check_workspace(&self, work: &Path) -> Result<(), Refused> {
        let state = self.post().state.path();
        let own = [state.join("workspaces")];
        let places: &[PathBuf] = match self.settings.api.workspaces.as_slice() {
            [] => &own,
            said => said,
        };
        let is_below = |place: &PathBuf| {
            let place = place.canonicalize();
            place.is_ok_and(|place| work.starts_with(place))
        };
        // A workspace above the state directory is no reason to open that.
        let state = state.canonicalize().unwrap_or_else(|_| state.to_owned());
        let workspaces = state.join("workspaces");
        let is_in_state =
            state.starts_with(work) || work.starts_with(&state) && !work.starts_with(workspaces);
        if places.iter().any(is_below) && !is_in_state {
            return Ok(());
        }
        let shown: Vec<_> = places.iter().map(|it| it.display().to_string()).collect();
        let said = format!("{} is not below {}", work.display(), shown.join(" or "));
        Err(refused(said, USE_WORKSPACE))
    }
}

const USE_WORKSPACE: &str = "work below a directory that supervisor.toml names: [supervisor.api] workspaces = [\"/srv/agents\"]";

fn within(ceiling: &Capability, wanted: &Capability, places: &Places) -> Result<(), Refused> {
    let Err(excesses) = ceiling.attenuate(wanted, places) else {
        return Ok(());
    };
    let first = excesses.first();
    let said = first.map_or_else(
        || "more than the ceiling".to_owned(),
        |excess| said(ceiling, excess),
    );
    let more = match excesses.len() {
        0 | 1 => String::new(),
        many => format!(" (and {} more)", many - 1),
    };
    let hint =
        "ask for less, or have the owner widen it: [supervisor.api] ceiling = \"capability.yaml\"";
    Err(refused(format!("{said}{more}"), hint))
}

/// The rule, where it stands, and what the ceiling has instead.
fn said(ceiling: &Capability, excess: &Excess) -> String {
    format!(
        "{}: it asks for {} ({}), and the ceiling, {}, has {}",
        excess.field, excess.child, excess.origin, ceiling.name, excess.parent
    )
}

fn refused(message: String, hint: &'static str) -> Refused {
    let problem = Problem::new("deny_ceiling", message).hint(hint);
    Refused(Status::FORBIDDEN, problem)
}
