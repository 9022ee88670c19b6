//! `mcp`: its shape, and how it becomes rules.

use std::collections::BTreeMap;

use belljar_policy::{
    BlockedTool, CallRule, Capability, InvalidToolPattern, McpServer, NameRules, Pointer,
    ResourcePattern, Rule, SecretPlace, ServerHeader, ToolPattern, Verdict, is_mcp_header,
    is_mcp_server,
};

use crate::capability_file::{PATH, RATE, TEXTS, words};
use crate::decode::{Written, limit, replace, text, unexpected, whole};
use crate::mcp_arguments::{ARGUMENT, argument, pointer};
use crate::node::{Node, Problem, quoted};
use crate::secrets_section::{SOURCE, file, source, withhold};
use crate::shape::{Choice, Object, Shape, field, required};

/// The value of `mcp`.
pub(crate) static MCP: Object = Object {
    name: "mcp",
    doc: "What the agent may ask of MCP servers, and they of it. What denies wins over what holds, and that over what allows.",
    fields: &[
        field(
            "servers",
            Shape::Map {
                item: &Shape::Object(&SERVER),
                most: 64,
            },
            "The servers, by the name that rules know them by.",
        ),
        field(
            "allowed_tools",
            Shape::OrNull(&TEXTS),
            "`server:tool`, with `*` for any characters; null is all tools of the listed servers.",
        ),
        field(
            "blocked_tools",
            TEXTS,
            "The same, refused even if allowed; `server:tool:/etc/*` is calls with such a path.",
        ),
        field(
            "rules",
            Shape::List {
                item: &Shape::Object(&RULE),
                most: 1000,
            },
            "What becomes of calls, by tool and arguments. A tool that a rule allows is allowed in no other way.",
        ),
        field(
            "resources",
            Shape::Object(&RESOURCES),
            "The resources that may be read.",
        ),
        field(
            "prompts",
            Shape::Object(&PROMPTS),
            "The prompts that may be got.",
        ),
        field(
            "server_requests",
            Shape::Object(&REQUESTS),
            "What servers may ask of the agent; nothing if not said.",
        ),
        field(
            "rate_limit_per_minute",
            RATE,
            "Calls per minute, of all tools.",
        ),
        field(
            "hold_seconds",
            Shape::Whole {
                least: 1,
                most: 86_400,
            },
            "How long a held call waits for an answer; 120 if not said.",
        ),
        field(
            "on_new_tool",
            Shape::Choice(&words(&["hold", "allow"])),
            "What becomes of a tool that is new or changed since it was first seen; hold if not said.",
        ),
    ],
};

static SERVER: Object = Object {
    name: "a server",
    doc: "How the server is reached: by one of command, url and unix.",
    fields: &[
        field(
            "command",
            Shape::List {
                item: &Shape::Text { most: 4096 },
                most: 256,
            },
            "The program and its arguments; it runs in a box of its own.",
        ),
        field(
            "capability",
            PATH,
            "The file of its capability, relative to this one; the profile strict if not said.",
        ),
        field(
            "env",
            Shape::Map {
                item: &Shape::Text { most: 4096 },
                most: 256,
            },
            "Variables it is given.",
        ),
        field(
            "url",
            Shape::Text { most: 2048 },
            "The address of a server that speaks streamable HTTP: http:// or https://.",
        ),
        field(
            "ca",
            PATH,
            "The PEM file with the certificates that its address is trusted by; the host's if not said.",
        ),
        field(
            "bearer",
            Shape::Guarded(&SOURCE),
            "Where the token is that it gets as `Authorization: Bearer …`. The agent does not see it.",
        ),
        field(
            "headers",
            Shape::Guarded(&Shape::Map {
                item: &SOURCE,
                most: 16,
            }),
            "Headers that it gets, and where their values are. The agent does not see them.",
        ),
        field(
            "unix",
            PATH,
            "The socket of a server that speaks streamable HTTP.",
        ),
    ],
};

static VERDICT: Choice = words(&["allow", "deny", "hold"]);

static RULE: Object = Object {
    name: "a rules item",
    doc: "What becomes of some calls.",
    fields: &[
        required(
            "tool",
            Shape::Text { most: 512 },
            "`server:tool`, with `*` for any characters.",
        ),
        field(
            "verdict",
            Shape::Choice(&VERDICT),
            "What becomes of them; allow if not said.",
        ),
        field(
            "arguments",
            Shape::List {
                item: &Shape::Object(&ARGUMENT),
                most: 64,
            },
            "Conditions on the arguments; all must be met.",
        ),
        field(
            "rate_limit_per_minute",
            RATE,
            "Calls per minute that meet the conditions.",
        ),
        field(
            "redact",
            Shape::List {
                item: &Shape::Text { most: 512 },
                most: 64,
            },
            "Arguments, as JSON pointers, of which the record keeps size and digest only.",
        ),
    ],
};

static RESOURCES: Object = Object {
    name: "resources",
    doc: "The resources that may be read.",
    fields: &[
        field(
            "allowed",
            Shape::OrNull(&TEXTS),
            "`server:uri`, e.g. `files:file:///work/**`; null is all of the listed servers.",
        ),
        field("blocked", TEXTS, "The same, refused even if allowed."),
    ],
};

static PROMPTS: Object = Object {
    name: "prompts",
    doc: "The prompts that may be got.",
    fields: &[
        field(
            "allowed",
            Shape::OrNull(&TEXTS),
            "`server:prompt`, with `*` for any characters; null is all of the listed servers.",
        ),
        field("blocked", TEXTS, "The same, refused even if allowed."),
    ],
};

static REQUESTS: Object = Object {
    name: "server_requests",
    doc: "What servers may ask of the agent.",
    fields: &[
        field(
            "sampling",
            Shape::Choice(&VERDICT),
            "To have its model write something.",
        ),
        field(
            "elicitation",
            Shape::Choice(&VERDICT),
            "To have a person answer something.",
        ),
        field(
            "roots",
            Shape::Choice(&VERDICT),
            "Which directories to work in.",
        ),
    ],
};

/// Reads the section into rules.
pub(crate) fn decode_mcp(
    capability: &mut Capability,
    section: &Node<'_>,
    written: Written<'_>,
) -> Result<(), Problem> {
    let get = |key| section.get(key);
    limit(&mut capability.tools.servers, get("servers"), |node| {
        servers(node, written)
    })?;
    for rule in capability
        .tools
        .servers
        .clone()
        .unwrap_or_default()
        .values()
    {
        for header in rule.value.headers() {
            withhold(capability, rule, &header.source);
        }
    }
    let tools = &mut capability.tools;
    let tool = |list: &Node<'_>| patterns(list, written, ToolPattern::parse);
    let block = |list: &Node<'_>| patterns(list, written, BlockedTool::parse);
    limit(&mut tools.allowed, get("allowed_tools"), tool)?;
    replace(&mut tools.blocked, get("blocked_tools"), block)?;
    replace(&mut tools.rules, get("rules"), |list| {
        list.items()
            .iter()
            .map(|item| rule(item, written))
            .collect()
    })?;
    names(
        &mut tools.resources,
        get("resources"),
        written,
        ResourcePattern::parse,
    )?;
    names(
        &mut tools.prompts,
        get("prompts"),
        written,
        ToolPattern::parse,
    )?;
    if let Some(asks) = get("server_requests") {
        let own = &mut tools.server_requests;
        replace(&mut own.sampling, asks.get("sampling"), verdict)?;
        replace(&mut own.elicitation, asks.get("elicitation"), verdict)?;
        replace(&mut own.roots, asks.get("roots"), verdict)?;
    }
    limit(
        &mut tools.rate_limit_per_min,
        get("rate_limit_per_minute"),
        whole,
    )?;
    limit(&mut tools.hold_seconds, get("hold_seconds"), whole)?;
    replace(&mut tools.on_new_tool, get("on_new_tool"), verdict)
}

fn names<T>(
    rules: &mut NameRules<T>,
    section: Option<&Node<'_>>,
    written: Written<'_>,
    parse: fn(&str) -> Result<T, InvalidToolPattern>,
) -> Result<(), Problem> {
    let Some(section) = section else {
        return Ok(());
    };
    let list = |list: &Node<'_>| patterns(list, written, parse);
    limit(&mut rules.allowed, section.get("allowed"), list)?;
    replace(&mut rules.blocked, section.get("blocked"), list)
}

fn patterns<T>(
    list: &Node<'_>,
    written: Written<'_>,
    parse: fn(&str) -> Result<T, InvalidToolPattern>,
) -> Result<Vec<Rule<T>>, Problem> {
    let each = |item: &Node<'_>| Ok(Rule::new(pattern(item, parse)?, written.at(item)));
    list.items().iter().map(each).collect()
}

fn pattern<T>(
    item: &Node<'_>,
    parse: fn(&str) -> Result<T, InvalidToolPattern>,
) -> Result<T, Problem> {
    let text = text(item)?;
    parse(text).map_err(|invalid| {
        Problem::new(item.span, format!("{invalid}: {}", quoted(text))).with_hint(invalid.hint())
    })
}

fn verdict(node: &Node<'_>) -> Result<Verdict, Problem> {
    match text(node)? {
        "allow" => Ok(Verdict::Allow),
        "hold" => Ok(Verdict::Hold),
        "deny" => Ok(Verdict::Deny),
        _ => Err(unexpected(node)),
    }
}

fn rule(item: &Node<'_>, written: Written<'_>) -> Result<Rule<CallRule>, Problem> {
    let mut rule = CallRule {
        tool: item.get("tool").map_or_else(
            || Err(unexpected(item)),
            |node| pattern(node, ToolPattern::parse),
        )?,
        verdict: Verdict::Allow,
        conditions: Vec::new(),
        rate_limit_per_min: None,
        redact: Vec::new(),
    };
    replace(&mut rule.verdict, item.get("verdict"), verdict)?;
    replace(&mut rule.conditions, item.get("arguments"), |list| {
        list.items().iter().map(argument).collect()
    })?;
    limit(
        &mut rule.rate_limit_per_min,
        item.get("rate_limit_per_minute"),
        whole,
    )?;
    replace(&mut rule.redact, item.get("redact"), |list| {
        list.items()
            .iter()
            .map(pointer)
            .collect::<Result<Vec<Pointer>, _>>()
    })?;
    if let Some(node) = item.get("rate_limit_per_minute")
        && rule.verdict == Verdict::Deny
    {
        let problem = Problem::new(
            node.span,
            "a rule that denies lets nothing through at any rate",
        );
        return Err(problem.with_hint("leave it out, or use verdict: allow"));
    }
    Ok(Rule::new(rule, written.at(item)))
}

fn servers(
    section: &Node<'_>,
    written: Written<'_>,
) -> Result<BTreeMap<String, Rule<McpServer>>, Problem> {
    let mut servers = BTreeMap::new();
    for (key, node) in section.entries() {
        if !is_mcp_server(&key.text) {
            let message = format!("{} can't be a server's name", quoted(&key.text));
            let hint = "use letters, digits, `-` and single `_`, at most 64";
            return Err(Problem::new(key.span, message).with_hint(hint));
        }
        servers.insert(
            key.text.to_string(),
            Rule::new(server(node, written)?, written.at(node)),
        );
    }
    Ok(servers)
}

fn server(node: &Node<'_>, written: Written<'_>) -> Result<McpServer, Problem> {
    let wrong = |at: &Node<'_>, message: &str| {
        let hint = "write {command: [program, argument]}, {url: \"http://…\"} or {unix: /path}";
        Err(Problem::new(at.span, message).with_hint(hint))
    };
    let (command, url, unix) = (node.get("command"), node.get("url"), node.get("unix"));
    if let (None, Some(key)) = (command, node.get("capability").or(node.get("env"))) {
        return wrong(key, "only a server that is started has a box and variables");
    }
    let on_the_way = ["ca", "bearer", "headers"].map(|key| node.get(key));
    if let (None, Some(key)) = (url, on_the_way.into_iter().flatten().next()) {
        return wrong(key, "only a server at a url is sent headers, or has a ca")
            .map_err(Problem::guarded);
    }
    match (command, url, unix) {
        (Some(list), None, None) if list.items().is_empty() => wrong(list, "the command is empty"),
        (Some(list), None, None) => {
            let words = |list: &Node<'_>| {
                list.items()
                    .iter()
                    .map(|item| text(item).map(str::to_owned))
                    .collect::<Result<Vec<_>, Problem>>()
            };
            Ok(McpServer::Command {
                command: words(list)?,
                capability: node
                    .get("capability")
                    .map(|node| text(node).map(str::to_owned))
                    .transpose()?,
                env: node
                    .get("env")
                    .map(variables)
                    .transpose()?
                    .unwrap_or_default(),
            })
        }
        (None, Some(url), None) => {
            let text = text(url)?;
            if !(text.starts_with("http://") || text.starts_with("https://"))
                || text.contains(char::is_whitespace)
            {
                return wrong(url, "not an http address");
            }
            let ca = node.get("ca").map(|node| file(node, written));
            if let (Some(node), false) = (node.get("ca"), text.starts_with("https://")) {
                return wrong(node, "a ca is for an https address");
            }
            Ok(McpServer::Url {
                url: text.to_owned(),
                ca: ca.transpose()?.map(|rule| rule.value),
                headers: headers(node, written).map_err(Problem::guarded)?,
            })
        }
        (None, None, Some(unix)) => {
            let text = text(unix)?;
            if !text.starts_with('/') {
                return wrong(unix, "a socket's path is absolute");
            }
            Ok(McpServer::Unix {
                unix: text.to_owned(),
            })
        }
        _ => wrong(node, "a server needs one of command, url and unix"),
    }
}

/// What a server gets besides the protocol's own headers, each header once, in the order of their names.
fn headers(server: &Node<'_>, written: Written<'_>) -> Result<Vec<ServerHeader>, Problem> {
    let mut all = Vec::new();
    if let Some(from) = server.get("bearer") {
        all.push(ServerHeader {
            place: SecretPlace::Bearer,
            source: source(from, written)?,
        });
    }
    let named = server.get("headers").map(Node::entries);
    for (key, from) in named.into_iter().flatten() {
        let wrong = |message: String, hint: &str| Problem::new(key.span, message).with_hint(hint);
        let place = SecretPlace::header(&key.text)
            .map_err(|invalid| wrong(invalid.to_string(), invalid.hint()))?;
        if is_mcp_header(place.header_name()) {
            let hint = "name the header the server reads its key from, e.g. x-api-key";
            return Err(wrong("the gateway writes this header itself".into(), hint));
        }
        let header = ServerHeader {
            place,
            source: source(from, written)?,
        };
        let name = header.place.header_name();
        if all
            .iter()
            .any(|other: &ServerHeader| other.place.header_name() == name)
        {
            return Err(wrong(
                format!("{name} is there twice"),
                "`bearer` is the header authorization; use one",
            ));
        }
        all.push(header);
    }
    all.sort_by(|a, b| a.place.header_name().cmp(b.place.header_name()));
    Ok(all)
}

fn variables(section: &Node<'_>) -> Result<BTreeMap<String, String>, Problem> {
    let each = section.entries().iter().map(|(key, node)| {
        if key.text.is_empty() || key.text.contains(['=', '\0']) {
            let message = format!("{} cannot be a variable's name", quoted(&key.text));
            return Err(Problem::new(key.span, message));
        }
        Ok((key.text.to_string(), text(node)?.to_owned()))
    });
    each.collect()
}
