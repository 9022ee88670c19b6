//! An item of `network_egress_rules`: its shape, and how it becomes a rule.

use belljar_policy::{
    EgressEffect, EgressRule, EgressTerms, HttpTerms, PathPattern, PrivateAddresses, Reach, Rule,
    WebSocket, is_method,
};

use crate::capability_file::{DEFAULT_RATE, MOST_ITEMS, PORTS, RATE, SIZE, words};
use crate::decode::{
    Written, domain, limit, mebibytes, ports, replace, text, truth, unexpected, whole,
};
use crate::node::{Node, Problem, quoted};
use crate::shape::{Object, Shape, field, required};

pub(crate) static EGRESS: Object = Object {
    name: "a network_egress_rules item",
    doc: "One destination.",
    fields: &[
        required(
            "domain",
            Shape::Text { most: 4096 },
            "A host name, `*.suffix` for every host below it, an address, or an address block.",
        ),
        field("ports", PORTS, "Its ports; an empty list is all of them."),
        field("rate_limit_per_min", RATE, "Requests per minute."),
        field(
            "effect",
            Shape::Choice(&words(&["allow", "deny"])),
            "Whether to let connections through or to block them; a rule that blocks wins.",
        ),
        field(
            "max_connections",
            Shape::Whole {
                least: 1,
                most: 1_000_000,
            },
            "Connections open at once.",
        ),
        field("max_mb", SIZE, "MiB in the whole run, both ways together."),
        field(
            "allow_private",
            Shape::Bool,
            "Whether the host may be at a private address. The host itself is reached by a rule for localhost that lists its ports.",
        ),
        field(
            "http",
            Shape::Object(&HTTP),
            "Which requests may be made. Belljar then looks inside TLS.",
        ),
    ],
};

static HTTP: Object = Object {
    name: "http",
    doc: "Which requests may be made.",
    fields: &[
        field(
            "methods",
            Shape::List {
                item: &Shape::Text { most: 32 },
                most: MOST_ITEMS,
            },
            "Methods in capitals; an empty list is all of them.",
        ),
        field(
            "paths",
            Shape::List {
                item: &Shape::Text { most: 2048 },
                most: MOST_ITEMS,
            },
            "Paths, such as /v1/models, or /v1/* for all that begin with /v1/; an empty list is all of them.",
        ),
        field(
            "websocket",
            Shape::Choice(&words(&["allow", "refuse"])),
            "Whether a request may become a WebSocket, inside which nothing is looked at.",
        ),
    ],
};

/// Reads one item.
pub(crate) fn egress(item: &Node<'_>, written: Written<'_>) -> Result<Rule<EgressRule>, Problem> {
    let mut rule = EgressRule {
        domain: item
            .get("domain")
            .map_or_else(|| Err(unexpected(item)), domain)?,
        ports: Vec::new(),
        rate_limit_per_min: DEFAULT_RATE,
        effect: EgressEffect::Allow,
        terms: EgressTerms::default(),
    };
    replace(&mut rule.ports, item.get("ports"), ports)?;
    replace(
        &mut rule.rate_limit_per_min,
        item.get("rate_limit_per_min"),
        whole,
    )?;
    replace(&mut rule.effect, item.get("effect"), effect)?;
    match rule.effect {
        EgressEffect::Allow => rule.terms = terms(item, &rule)?,
        EgressEffect::Deny => no_terms(item)?,
    }
    Ok(Rule::new(rule, written.at(item)))
}

fn effect(node: &Node<'_>) -> Result<EgressEffect, Problem> {
    match text(node)? {
        "allow" => Ok(EgressEffect::Allow),
        "deny" => Ok(EgressEffect::Deny),
        _ => Err(unexpected(node)),
    }
}

/// A rule that blocks has no terms: whoever writes some expects something to pass.
fn no_terms(item: &Node<'_>) -> Result<(), Problem> {
    let keys = ["max_connections", "max_mb", "allow_private", "http"];
    match keys.into_iter().find_map(|key| item.get(key)) {
        None => Ok(()),
        Some(node) => {
            let message = "a rule that blocks lets nothing through on any terms";
            Err(Problem::new(node.span, message).with_hint("leave them out, or use effect: allow"))
        }
    }
}

fn terms(item: &Node<'_>, rule: &EgressRule) -> Result<EgressTerms, Problem> {
    let mut terms = EgressTerms::default();
    limit(
        &mut terms.max_connections,
        item.get("max_connections"),
        whole,
    )?;
    limit(&mut terms.max_bytes, item.get("max_mb"), mebibytes)?;
    limit(&mut terms.http, item.get("http"), http)?;
    let private = match item.get("allow_private").map(truth).transpose()? {
        Some(true) => PrivateAddresses::Accept,
        Some(false) | None => PrivateAddresses::Refuse,
    };
    terms.reach = Reach::of(&rule.domain, &rule.ports, private);
    Ok(terms)
}

fn http(section: &Node<'_>) -> Result<HttpTerms, Problem> {
    let mut http = HttpTerms::default();
    replace(&mut http.methods, section.get("methods"), |list| {
        list.items().iter().map(method).collect()
    })?;
    replace(&mut http.paths, section.get("paths"), |list| {
        list.items().iter().map(path).collect()
    })?;
    replace(
        &mut http.websocket,
        section.get("websocket"),
        |node| match text(node)? {
            "allow" => Ok(WebSocket::Allow),
            "refuse" => Ok(WebSocket::Refuse),
            _ => Err(unexpected(node)),
        },
    )?;
    Ok(http)
}

fn method(node: &Node<'_>) -> Result<String, Problem> {
    let text = text(node)?;
    if is_method(text) {
        return Ok(text.to_owned());
    }
    let message = format!("not a method: {}", quoted(text));
    Err(Problem::new(node.span, message).with_hint("write it in capitals, e.g. GET"))
}

fn path(node: &Node<'_>) -> Result<PathPattern, Problem> {
    let text = text(node)?;
    PathPattern::parse(text).map_err(|invalid| {
        Problem::new(node.span, format!("{invalid}: {}", quoted(text)))
            .with_hint("write e.g. /v1/models, or /v1/* for all below")
    })
}
