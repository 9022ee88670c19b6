//! `belljar secret`: keys that policies name and nobody needs to export.

use std::io::{IsTerminal as _, Read};

use belljar_policy::{Origin, Rule, SecretPlace, SecretRule, SecretSource};
use belljar_supervisor::{SecretReader, SecretStore, StateDir, find_places};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use serde::Serialize;
use serde_json::json;
use zeroize::Zeroizing;

use crate::cli::{Ask, OutputFormat, Secret, SetSecret};
use crate::exit::{self, Failure};
use crate::print::{self, Line};

/// No key is longer; one byte more is enough to know that it is.
const MOST: u64 = 64 * 1024 + 3;

pub(crate) fn secret(what: &Secret) -> Result<u8, Failure> {
    let state = match what {
        Secret::Set(_) => StateDir::find(),
        Secret::List { .. } | Secret::Rm { .. } | Secret::Test { .. } => StateDir::existing(),
    }?;
    let store = SecretStore::of(&state);
    match what {
        Secret::Set(new) => set(&store, new),
        Secret::List { format } => list(&store, format.output),
        Secret::Rm { name } => remove(&store, name),
        Secret::Test { name, ask } => test(&state, &store, name, ask),
    }
}

fn set(store: &SecretStore, new: &SetSecret) -> Result<u8, Failure> {
    let SetSecret {
        name,
        from_env,
        from_file,
    } = new;
    let mut value = match (from_env, from_file) {
        (Some(variable), _) => from_variable(variable)?,
        (None, Some(path)) => {
            let bytes = Zeroizing::new(super::files::read_file(path, MOST)?);
            text(&bytes)?
        }
        (None, None) if std::io::stdin().is_terminal() => asked(name)?,
        (None, None) => text(&read(std::io::stdin().lock())?)?,
    };
    if value.ends_with('\n') {
        value.pop();
        if value.ends_with('\r') {
            value.pop();
        }
    }
    let was_there = store.set(name, &value)?;
    let done = if was_there { "replaced" } else { "kept" };
    print::line(
        Line::Note,
        &format!("{name} is {done}; a policy names it by `from: {{store: {name}}}`"),
    );
    Ok(exit::OK)
}

fn from_variable(name: &str) -> Result<Zeroizing<String>, Failure> {
    let value = std::env::var_os(name).ok_or_else(|| {
        Failure::Invalid(
            format!("the variable {} is not set", print::harmless(name)),
            "set it, or give the secret on standard input".into(),
        )
    })?;
    text(&Zeroizing::new(value.into_encoded_bytes()))
}

fn text(bytes: &[u8]) -> Result<Zeroizing<String>, Failure> {
    let text = std::str::from_utf8(bytes).map_err(|_| {
        let hint = "a key is one line of printable ASCII";
        Failure::Invalid("what was given is not text".into(), hint.into())
    })?;
    Ok(Zeroizing::new(text.to_owned()))
}

fn read(from: impl Read) -> Result<Zeroizing<Vec<u8>>, Failure> {
    // Sized beforehand: a buffer that grows leaves its old copies unwiped.
    let mut bytes = Zeroizing::new(Vec::with_capacity(MOST as usize));
    let read = from.take(MOST).read_to_end(&mut bytes);
    read.map_err(|error| unreadable(&error))?;
    Ok(bytes)
}

fn unreadable(error: &std::io::Error) -> Failure {
    Failure::Invalid(
        format!("standard input can't be read: {error}"),
        "pipe the secret in, or use --from-env or --from-file".into(),
    )
}

/// One line from the terminal, which does not show it.
fn asked(name: &str) -> Result<Zeroizing<String>, Failure> {
    let silent = SilentTerminal::enter()?;
    print::prompt(&format!("{name} (not shown): "));
    let mut line = Zeroizing::new(Vec::with_capacity(MOST as usize));
    let mut input = std::io::stdin().lock();
    let mut byte = [0_u8];
    loop {
        let count = input.read(&mut byte).map_err(|error| unreadable(&error))?;
        match (count, byte) {
            (0, _) | (_, [b'\n' | b'\r' | 4]) => break,
            // Keys that would be signals: the terminal must be put back first.
            (_, [3 | 26 | 28]) => {
                drop(silent);
                let hint = "nothing was changed";
                return Err(Failure::Invalid("given up".into(), hint.into()));
            }
            (_, [8 | 127]) => drop(line.pop()),
            (_, [21]) => line.clear(),
            (_, [other]) if (line.len() as u64) < MOST => line.push(other),
            _ => {}
        }
    }
    drop(silent);
    text(&line)
}

/// The terminal, which neither shows what is typed nor makes signals of it until this is dropped.
struct SilentTerminal(Termios);

impl SilentTerminal {
    fn enter() -> Result<Self, Failure> {
        let stdin = std::io::stdin();
        let before = tcgetattr(&stdin).map_err(|errno| unreadable(&errno.into()))?;
        let mut ours = before.clone();
        ours.local_modes
            .remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        tcsetattr(&stdin, OptionalActions::Flush, &ours)
            .map_err(|errno| unreadable(&errno.into()))?;
        Ok(Self(before))
    }
}

impl Drop for SilentTerminal {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _gone = tcsetattr(std::io::stdin(), OptionalActions::Flush, &self.0);
        print::prompt("\n");
    }
}

fn list(store: &SecretStore, output: OutputFormat) -> Result<u8, Failure> {
    let kept = store.list()?;
    if output == OutputFormat::Json {
        print::json(&json!({"secrets": kept}));
        return Ok(exit::OK);
    }
    print::out(&format!("{:<26}NAME\n", "SET"));
    for secret in kept {
        let (set, name) = (print::utc(secret.set_ms), print::harmless(&secret.name));
        print::out(&format!("{set:<26}{name}\n"));
    }
    Ok(exit::OK)
}

fn remove(store: &SecretStore, name: &str) -> Result<u8, Failure> {
    if store.remove(name)? {
        print::out(&format!("{}  removed\n", print::harmless(name)));
        return Ok(exit::OK);
    }
    Err(unknown(name))
}

fn unknown(name: &str) -> Failure {
    Failure::Invalid(
        format!("there is no secret {}", print::harmless(name)),
        "`belljar secret list` names those that are kept; --config names a policy with others"
            .into(),
    )
}

/// What a test finds. Never the value.
#[derive(Debug, Serialize)]
struct Tested {
    secret: String,
    from: String,
    readable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    goes_to: Option<Destination>,
}

/// Where a policy sends it.
#[derive(Debug, Serialize)]
struct Destination {
    domain: String,
    ports: Vec<u16>,
    #[serde(rename = "as", skip_serializing_if = "Option::is_none")]
    place: Option<SecretPlace>,
    origin: Origin,
}

fn test(state: &StateDir, store: &SecretStore, name: &str, ask: &Ask) -> Result<u8, Failure> {
    let capability = super::capability(&ask.policy)?;
    let here = std::env::current_dir().map_err(|error| {
        let hint = "run it where `belljar run` would be";
        Failure::Invalid(format!("the working directory: {error}"), hint.into())
    })?;
    let (_, places) = find_places(&here)?;
    let reader = SecretReader::new(&places, state);
    let stored = SecretSource::Store(name.to_owned());
    let is_meant =
        |rule: &&Rule<SecretRule>| rule.value.name == name || rule.value.source == stored;
    let mut tested: Vec<Tested> = capability
        .secrets
        .iter()
        .filter(is_meant)
        .map(|rule| look(&reader, &rule.value.name, &rule.value.source, Some(rule)))
        .collect();
    if tested.is_empty() {
        if store.list()?.iter().all(|kept| kept.name != name) {
            return Err(unknown(name));
        }
        tested.push(look(&reader, name, &stored, None));
    }
    let is_well = tested.iter().all(|tested| tested.readable);
    if ask.format.output == OutputFormat::Json {
        print::json(&json!({"secrets": tested}));
    } else {
        tested.iter().for_each(|tested| print::out(&tested.text()));
    }
    Ok(if is_well { exit::OK } else { exit::NO })
}

fn look(
    reader: &SecretReader,
    name: &str,
    source: &SecretSource,
    rule: Option<&Rule<SecretRule>>,
) -> Tested {
    // What is read is dropped, and wiped, at once.
    let read = reader.for_header(source, &format!("secret {name}"));
    Tested {
        secret: name.to_owned(),
        from: source.to_string(),
        readable: read.is_ok(),
        why: read.err().map(|error| error.to_string()),
        goes_to: rule.map(|rule| Destination {
            domain: rule.value.domain.to_string(),
            ports: rule.value.ports.clone(),
            place: rule.value.place.clone(),
            origin: rule.origin.clone(),
        }),
    }
}

impl Tested {
    fn text(&self) -> String {
        let Self { secret, from, .. } = self;
        let mut text = match &self.why {
            None => format!("{secret}: can be read from {from}\n"),
            Some(why) => format!("{secret}: can't be read: {why}\n"),
        };
        match &self.goes_to {
            None => text.push_str("  goes nowhere: the policy has no secret from there\n"),
            Some(destination) => {
                let Destination {
                    domain,
                    ports,
                    place,
                    origin,
                } = destination;
                text.push_str(&format!("  goes to {domain}"));
                if !ports.is_empty() {
                    text.push_str(&format!(", ports {ports:?}"));
                }
                text.push_str(", where its placeholder stands");
                if let Some(place) = place {
                    text.push_str(&format!(" and as {place}"));
                }
                text.push_str(&format!(" ({origin})\n"));
            }
        }
        let lines = text
            .lines()
            .map(|line| format!("{}\n", print::harmless(line)));
        lines.collect()
    }
}
