//! `ports` and `llm`: their shapes, and how they become rules.

use std::net::IpAddr;

use belljar_policy::{
    Capability, LlmApi, LlmEndpointRule, OnBudget, PublishedPort, Rule, is_provider,
};

use crate::capability_file::{MOST_ITEMS, PATH, PORTS, words};
use crate::decode::{Written, domain, ports, replace, text, unexpected, whole};
use crate::node::{Node, Problem, quoted};
use crate::secrets_section::file;
use crate::shape::{Choice, Field, Object, Shape, field, required};

/// `ports`, in either kind of file.
pub(crate) const PUBLISHED: Field = field(
    "ports",
    PUBLISHED_PORTS,
    "Ports of the box that the host can connect to.",
);
const PUBLISHED_PORTS: Shape = Shape::List {
    item: &Shape::OneOf(&[PORT, Shape::Object(&PUBLISHED_PORT)]),
    most: 1024,
};

/// `llm`, in either kind of file.
pub(crate) const LLM: Field = field(
    "llm",
    Shape::Object(&TERMS),
    "How calls to models are metered.",
);

const PORT: Shape = Shape::Whole {
    least: 1,
    most: 65_535,
};

static PUBLISHED_PORT: Object = Object {
    name: "a ports item",
    doc: "A port of the box that the host can connect to.",
    fields: &[
        required("box", PORT, "The port inside the box."),
        field(
            "host",
            Shape::Whole {
                least: 0,
                most: 65_535,
            },
            "The port on the host; the same if not said, and 0 is any free one.",
        ),
        field(
            "address",
            Shape::Text { most: 64 },
            "The host's address to listen on; 127.0.0.1 if not said, so that nobody but the host connects.",
        ),
    ],
};

/// The value of `on_budget`.
pub(crate) static ON_BUDGET: Choice = words(&["kill", "refuse"]);

static TERMS: Object = Object {
    name: "llm",
    doc: "How calls to models are metered. What they may use is max_tokens and max_cost_usd.",
    fields: &[
        field(
            "on_budget",
            Shape::Choice(&ON_BUDGET),
            "When the budget is used up: kill ends the run, refuse goes on without models.",
        ),
        field(
            "endpoints",
            Shape::List {
                item: &Shape::Object(&ENDPOINT),
                most: MOST_ITEMS,
            },
            "Hosts that serve models, beside the well-known ones.",
        ),
        field(
            "prices",
            PATH,
            "A file of prices that win over the shipped ones.",
        ),
    ],
};

static ENDPOINT: Object = Object {
    name: "an endpoints item",
    doc: "A host that serves models. It says how to meter, and opens nothing: network_egress_rules do.",
    fields: &[
        required(
            "domain",
            Shape::Text { most: 4096 },
            "A host name, `*.suffix`, an address, or an address block.",
        ),
        field("ports", PORTS, "Its ports; an empty list is all of them."),
        required(
            "api",
            Shape::Choice(&words(&[
                "openai",
                "anthropic",
                "gemini",
                "openai_compatible",
            ])),
            "How it is spoken to.",
        ),
        field(
            "provider",
            Shape::Text { most: 64 },
            "Whose prices apply: the first column of the price table. The api's name if not said.",
        ),
    ],
};

/// Reads `ports` and `llm` of a section.
pub(crate) fn decode_network(
    capability: &mut Capability,
    section: &Node<'_>,
    written: Written<'_>,
) -> Result<(), Problem> {
    replace(&mut capability.ports, section.get("ports"), |list| {
        published(list, written)
    })?;
    let Some(llm) = section.get("llm") else {
        return Ok(());
    };
    replace(
        &mut capability.llm.on_budget,
        llm.get("on_budget"),
        on_budget,
    )?;
    replace(
        &mut capability.llm.endpoints,
        llm.get("endpoints"),
        |list| endpoints(list, written),
    )?;
    if let Some(node) = llm.get("prices") {
        let rule = file(node, written)?;
        // Whoever is charged by it must not write it.
        capability.filesystem.protected.push(rule.clone());
        capability.llm.prices = Some(rule);
    }
    Ok(())
}

pub(crate) fn on_budget(node: &Node<'_>) -> Result<OnBudget, Problem> {
    match text(node)? {
        "kill" => Ok(OnBudget::Kill),
        "refuse" => Ok(OnBudget::Refuse),
        _ => Err(unexpected(node)),
    }
}

fn published(list: &Node<'_>, written: Written<'_>) -> Result<Vec<Rule<PublishedPort>>, Problem> {
    let mut rules: Vec<Rule<PublishedPort>> = Vec::new();
    for item in list.items() {
        let value = published_port(item)?;
        if let Some(other) = rules.iter().find(|other| other.value.collides_with(&value)) {
            let message = format!(
                "{value} is published already, in line {}",
                other.origin.line
            );
            let hint = "remove one, or give it another `host` port or `address`";
            return Err(Problem::new(item.span, message).with_hint(hint));
        }
        rules.push(Rule::new(value, written.at(item)));
    }
    Ok(rules)
}

fn published_port(item: &Node<'_>) -> Result<PublishedPort, Problem> {
    let Some(in_box) = item.get("box") else {
        return whole(item).map(PublishedPort::same);
    };
    let mut port = PublishedPort::same(whole(in_box)?);
    replace(&mut port.on_host, item.get("host"), whole)?;
    replace(&mut port.address, item.get("address"), |node| {
        let text = text(node)?;
        text.parse::<IpAddr>().map_err(|_| {
            Problem::new(node.span, format!("not an address: {}", quoted(text))).with_hint(
                "write an address of the host, e.g. 127.0.0.1, or 0.0.0.0 for all of them",
            )
        })
    })?;
    Ok(port)
}

fn endpoints(list: &Node<'_>, written: Written<'_>) -> Result<Vec<Rule<LlmEndpointRule>>, Problem> {
    let mut rules: Vec<Rule<LlmEndpointRule>> = Vec::new();
    for item in list.items() {
        let value = endpoint(item)?;
        if let Some(other) = rules.iter().find(|other| other.value.collides_with(&value)) {
            let message = format!(
                "{} is an endpoint already, in line {}",
                value.domain, other.origin.line
            );
            let hint = "say each host's api once";
            return Err(Problem::new(item.span, message).with_hint(hint));
        }
        rules.push(Rule::new(value, written.at(item)));
    }
    Ok(rules)
}

fn endpoint(item: &Node<'_>) -> Result<LlmEndpointRule, Problem> {
    let need = |key| item.get(key).ok_or_else(|| unexpected(item));
    let word = need("api")?;
    let api = match text(word)? {
        "openai" | "openai_compatible" => LlmApi::OpenAi,
        "anthropic" => LlmApi::Anthropic,
        "gemini" => LlmApi::Gemini,
        _ => return Err(unexpected(word)),
    };
    let mut endpoint = LlmEndpointRule {
        domain: domain(need("domain")?)?,
        ports: Vec::new(),
        api,
        // Not the api: a compatible server does not have OpenAI's prices.
        provider: text(word)?.to_owned(),
    };
    replace(&mut endpoint.ports, item.get("ports"), ports)?;
    replace(&mut endpoint.provider, item.get("provider"), |node| {
        let text = text(node)?;
        if is_provider(text) {
            return Ok(text.to_owned());
        }
        let message = format!("{} can't be a provider's name", quoted(text));
        let hint = "use letters, digits, dots, hyphens and underscores, as in the price table";
        Err(Problem::new(node.span, message).with_hint(hint))
    })?;
    Ok(endpoint)
}
