//! `secrets` and `upstream_proxy`: their shapes, and how they become rules.
//!
//! Somebody may have written a secret itself where its place belongs. So nothing that is wrong here is shown: no value, and no
//! line of the file.

use std::collections::BTreeSet;
use std::path::Path;

use belljar_policy::{
    Capability, DomainPattern, EnvPolicy, MOST_REFRESH, PathRule, ProxyPlace, ProxyResolution,
    ProxyTerms, Rule, SecretPlace, SecretRule, SecretSource, decide_env, is_secret_name,
    is_variable_name,
};

use crate::capability_file::{MOST_ITEMS, PATH, PORTS, words};
use crate::decode::{Written, domain, ports, replace, text, unexpected, whole};
use crate::node::{Node, Problem};
use crate::shape::{Field, Object, Shape, field, required};

/// `secrets`, in either kind of file.
pub(crate) const SECRETS: Field = field(
    "secrets",
    SECRET_LIST,
    "What is put into requests on the way out, so that the agent never has it.",
);
const SECRET_LIST: Shape = Shape::Guarded(&Shape::List {
    item: &Shape::Object(&SECRET),
    most: MOST_ITEMS,
});

/// `upstream_proxy`, in either kind of file.
pub(crate) const UPSTREAM_PROXY: Field = field(
    "upstream_proxy",
    PROXY_PLACE,
    "The proxy of the host's network: http://host:port, or env for what HTTPS_PROXY says.",
);
const PROXY_PLACE: Shape = Shape::Guarded(&Shape::OneOf(&[PROXY_URL, Shape::Object(&PROXY)]));

const PROXY_URL: Shape = Shape::Text { most: 512 };
const NAME: Shape = Shape::Text { most: 255 };

static SECRET: Object = Object {
    name: "a secrets item",
    doc: "One secret: where it is on the host, and which requests get it.",
    fields: &[
        required(
            "name",
            NAME,
            "What it is called in messages and records: letters, digits, dots and hyphens.",
        ),
        required(
            "from",
            Shape::VariantWith(&FROM_REFRESHED, ("refresh", "command")),
            "Where it is on the host.",
        ),
        required(
            "domain",
            Shape::Text { most: 4096 },
            "The hosts that get it. A rule must let the agent connect there.",
        ),
        field(
            "ports",
            PORTS,
            "The ports they get it on; an empty list is all of them.",
        ),
        field(
            "as",
            Shape::OneOf(&[Shape::Choice(&words(&["bearer"])), Shape::Variant(&PLACE)]),
            "Where in a request it goes whatever the client sends there: bearer, or a header. Without it, only where the \
             client put the placeholder.",
        ),
        field(
            "env",
            NAME,
            "The variable that holds a placeholder in the box, for clients that want one.",
        ),
    ],
};

/// The value of `from`: where a secret is.
pub(crate) const SOURCE: Shape = Shape::Variant(&FROM);

static FROM: Object = Object {
    name: "from",
    doc: "Where a secret is on the host.",
    fields: &[ENV, FILE, STORE, COMMAND],
};

/// The same, for a secret that is put into requests for as long as the box runs.
static FROM_REFRESHED: Object = Object {
    name: "from",
    doc: "Where a secret is on the host.",
    fields: &[
        ENV,
        FILE,
        STORE,
        COMMAND,
        field(
            "refresh",
            Shape::Whole {
                least: 1,
                most: MOST_REFRESH as u64,
            },
            "Run the command again every so many seconds: less than what it prints is good for.",
        ),
    ],
};

const ENV: Field = field("env", NAME, "In this environment variable.");
const FILE: Field = field(
    "file",
    PATH,
    "In this file, whole, without its final line end. The box does not see the file.",
);
const STORE: Field = field(
    "store",
    Shape::Text { most: 64 },
    "Under this name in your own store: belljar secret set NAME.",
);
const COMMAND: Field = field(
    "command",
    Shape::List {
        item: &Shape::Text { most: 4096 },
        most: 256,
    },
    "What this program prints. It is started outside the box, without a shell.",
);

static PLACE: Object = Object {
    name: "as",
    doc: "Where in a request a secret goes.",
    fields: &[field("header", NAME, "The header's name.")],
};

static PROXY: Object = Object {
    name: "upstream_proxy",
    doc: "The proxy of the host's network that connections go through.",
    fields: &[
        required(
            "url",
            PROXY_URL,
            "http://host:port, or env for what HTTPS_PROXY of the host says.",
        ),
        field(
            "from",
            Shape::Variant(&FROM),
            "Where its user:password is, for proxies that ask.",
        ),
        field(
            "resolve",
            Shape::Choice(&words(&["host", "proxy"])),
            "Who turns names into addresses. With proxy, the proxy must refuse private addresses.",
        ),
    ],
};

/// Reads `secrets` and `upstream_proxy` of a section. `rule_for` is how a file of this kind lets connections through to a host.
pub(crate) fn decode_secrets(
    capability: &mut Capability,
    section: &Node<'_>,
    written: Written<'_>,
    rule_for: fn(&DomainPattern) -> String,
) -> Result<(), Problem> {
    if let Some(list) = section.get("secrets") {
        let secrets = secrets(list, written).map_err(Problem::guarded)?;
        for (rule, item) in secrets.iter().zip(list.items()) {
            check_reach(capability, &rule.value, item, rule_for).map_err(Problem::guarded)?;
            withhold(capability, rule, &rule.value.source);
        }
        capability.secrets = secrets;
    }
    if let Some(node) = section.get("upstream_proxy") {
        let terms = proxy(node, written).map_err(Problem::guarded)?;
        let rule = Rule::new(terms, written.at(node));
        if let Some(source) = &rule.value.credentials {
            withhold(capability, &rule, source);
        }
        capability.upstream_proxy = Some(rule);
    }
    Ok(())
}

/// What holds a secret outside must not be shown inside.
pub(crate) fn withhold<T>(capability: &mut Capability, rule: &Rule<T>, source: &SecretSource) {
    match source {
        SecretSource::Env(name) => {
            let withheld = &mut capability.env.withheld;
            withheld.insert(name.clone(), rule.origin.clone());
        }
        SecretSource::File(path) => {
            let hidden = &mut capability.filesystem.hidden;
            hidden.push(Rule::new(path.clone(), rule.origin.clone()));
        }
        // The store is in the state directory, which no box sees.
        SecretSource::Store(_) | SecretSource::Command(_) => {}
    }
}

fn check_reach(
    capability: &Capability,
    secret: &SecretRule,
    item: &Node<'_>,
    rule_for: fn(&DomainPattern) -> String,
) -> Result<(), Problem> {
    if secret.is_reachable(&capability.egress) {
        return Ok(());
    }
    let place = item.get("domain").unwrap_or(item);
    let message = format!(
        "the secret {} goes to {}, where no rule lets the agent connect",
        secret.name, secret.domain
    );
    Err(Problem::new(place.span, message).with_hint(rule_for(&secret.domain)))
}

fn secrets(list: &Node<'_>, written: Written<'_>) -> Result<Vec<Rule<SecretRule>>, Problem> {
    let mut rules: Vec<Rule<SecretRule>> = Vec::new();
    let mut variables = BTreeSet::new();
    for item in list.items() {
        let rule = secret(item, written)?;
        let value = &rule.value;
        let at = |key| item.get(key).unwrap_or(item).span;
        if rules.iter().any(|other| other.value.name == value.name) {
            let message = format!("there are two secrets named {}", value.name);
            return Err(Problem::new(at("name"), message).with_hint("give each its own name"));
        }
        if let Some(other) = rules.iter().find(|other| other.value.collides_with(value)) {
            let message = format!(
                "the secrets {} and {} go in the same header of the same hosts",
                other.value.name, value.name
            );
            let hint = "give each its own hosts, ports or header";
            return Err(Problem::new(at("domain"), message).with_hint(hint));
        }
        if let Some(name) = &value.env
            && !variables.insert(name.clone())
        {
            let message = format!("two secrets have their placeholder in {name}");
            return Err(Problem::new(at("env"), message).with_hint("give each its own variable"));
        }
        rules.push(rule);
    }
    Ok(rules)
}

fn secret(item: &Node<'_>, written: Written<'_>) -> Result<Rule<SecretRule>, Problem> {
    let need = |key| item.get(key).ok_or_else(|| unexpected(item));
    let mut rule = SecretRule {
        name: secret_name(need("name")?)?,
        source: source(need("from")?, written)?,
        domain: secret_domain(need("domain")?)?,
        ports: Vec::new(),
        place: None,
        env: None,
        refresh: None,
    };
    let refreshed = item.get("from").and_then(|from| from.get("refresh"));
    replace(&mut rule.refresh, refreshed, |node| whole(node).map(Some))?;
    replace(&mut rule.place, item.get("as"), |node| {
        place(node).map(Some)
    })?;
    replace(&mut rule.ports, item.get("ports"), ports)?;
    replace(&mut rule.env, item.get("env"), |node| {
        placeholder(node).map(Some)
    })?;
    Ok(Rule::new(rule, written.at(item)))
}

fn secret_name(node: &Node<'_>) -> Result<String, Problem> {
    let name = text(node)?;
    if is_secret_name(name) {
        return Ok(name.to_owned());
    }
    let hint = "use letters, digits, dots, hyphens and underscores, at most 64";
    Err(Problem::new(node.span, "this can't be a secret's name").with_hint(hint))
}

/// Wider than a rule's it can't be, so `*` needs words of its own.
fn secret_domain(node: &Node<'_>) -> Result<DomainPattern, Problem> {
    if text(node)? == "*" {
        let message = "a secret for `*` would go to every host";
        return Err(Problem::new(node.span, message).with_hint("name the host that needs it"));
    }
    domain(node)
}

/// Reads where a secret is.
pub(crate) fn source(node: &Node<'_>, written: Written<'_>) -> Result<SecretSource, Problem> {
    if let Some(node) = node.get("env") {
        return variable(node).map(SecretSource::Env);
    }
    if let Some(node) = node.get("file") {
        return file(node, written).map(|rule| SecretSource::File(rule.value));
    }
    if let Some(node) = node.get("store") {
        return secret_name(node).map(SecretSource::Store);
    }
    let Some(list) = node.get("command") else {
        return Err(unexpected(node));
    };
    let words = list
        .items()
        .iter()
        .map(|word| text(word).map(str::to_owned));
    let words = words.collect::<Result<Vec<_>, _>>()?;
    if words.is_empty() {
        let problem = Problem::new(list.span, "the command is empty");
        return Err(
            problem.with_hint("name the program and its arguments, e.g. [pass, show, openai]")
        );
    }
    Ok(SecretSource::Command(words))
}

/// A path of one file.
pub(crate) fn file(node: &Node<'_>, written: Written<'_>) -> Result<Rule<PathRule>, Problem> {
    let rule = written.path(node, PathRule::parse)?;
    let anchor = match &rule.value {
        PathRule::Root(path) => path == Path::new("/"),
        PathRule::Home(below) | PathRule::Work(below) => below.as_os_str().is_empty(),
        PathRule::AnyNamed(_) => true,
    };
    if anchor {
        return Err(Problem::new(node.span, "this is a directory").with_hint("name the file"));
    }
    Ok(rule)
}

fn variable(node: &Node<'_>) -> Result<String, Problem> {
    let name = text(node)?;
    if is_variable_name(name) {
        return Ok(name.to_owned());
    }
    let hint = "write the variable's name, e.g. OPENAI_API_KEY; a secret itself is never written in a file";
    Err(Problem::new(node.span, "this can't be a variable's name").with_hint(hint))
}

fn placeholder(node: &Node<'_>) -> Result<String, Problem> {
    let name = variable(node)?;
    if decide_env(&EnvPolicy::default(), &name, b"").is_allow() {
        let message = format!("programs need {name} as it is");
        let hint = "name the variable that the client reads its key from, e.g. OPENAI_API_KEY";
        return Err(Problem::new(node.span, message).with_hint(hint));
    }
    Ok(name)
}

fn place(node: &Node<'_>) -> Result<SecretPlace, Problem> {
    let Some(header) = node.get("header") else {
        return match text(node)? {
            "bearer" => Ok(SecretPlace::Bearer),
            _ => Err(unexpected(node)),
        };
    };
    SecretPlace::header(text(header)?)
        .map_err(|invalid| Problem::new(header.span, invalid.to_string()).with_hint(invalid.hint()))
}

fn proxy(node: &Node<'_>, written: Written<'_>) -> Result<ProxyTerms, Problem> {
    let url = node.get("url").unwrap_or(node);
    let mut terms = ProxyTerms {
        place: ProxyPlace::parse(text(url)?).map_err(|invalid| {
            Problem::new(url.span, invalid.to_string()).with_hint(invalid.hint())
        })?,
        credentials: None,
        resolution: ProxyResolution::default(),
    };
    replace(&mut terms.credentials, node.get("from"), |from| {
        source(from, written).map(Some)
    })?;
    replace(
        &mut terms.resolution,
        node.get("resolve"),
        |node| match text(node)? {
            "host" => Ok(ProxyResolution::Local),
            "proxy" => Ok(ProxyResolution::AtProxy),
            _ => Err(unexpected(node)),
        },
    )?;
    Ok(terms)
}
