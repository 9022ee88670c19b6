//! Secrets taken from where a policy says they are. They are read after the box's first process was made, so that no copy of
//! them is in it, and before its program runs.

use crate::error::RunError;
use crate::key_files::KnownSecret;
use belljar_egress::{HeaderSecret, SecretText};
use belljar_policy::{
    Capability, Origin, Places, Rule, SecretPlace, SecretRule, SecretSource, ServerHeader,
};
use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// No key is longer.
const LONGEST: u64 = 64 * 1024;
/// How long a command may take to print a secret.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a program in the box finds instead of a secret: enough for clients that want to see something.
pub(super) fn placeholder(rule: &SecretRule) -> String {
    placeholder_of(&rule.name)
}

fn placeholder_of(name: &str) -> String {
    format!("belljar-placeholder-{name}")
}

/// The values of a capability's secrets, in its order.
pub(super) fn values(
    capability: &Capability,
    places: &Places,
) -> Result<Vec<KnownSecret>, RunError> {
    let one = |rule: &Rule<SecretRule>| {
        let secret = &rule.value;
        let what = format!("{}: secret {}", rule.origin, secret.name);
        Ok(KnownSecret {
            name: secret.name.clone(),
            placeholder: placeholder(secret),
            value: for_header(&secret.source, &what, places)?,
        })
    };
    capability.secrets.iter().map(one).collect()
}

/// The same, with where each goes.
pub(super) fn headers(capability: &Capability, values: &[KnownSecret]) -> Vec<HeaderSecret> {
    let rules = || capability.secrets.iter().map(|rule| &rule.value);
    // A secret for several kinds of hosts is several rules, and a client has one placeholder for it.
    let placeholders = |secret: &SecretRule| {
        let same = rules().filter(|other| other.source == secret.source);
        same.map(placeholder).collect()
    };
    let one = |(secret, known): (&SecretRule, &KnownSecret)| HeaderSecret {
        name: secret.name.clone(),
        placeholders: placeholders(secret),
        source: spelled(&secret.source),
        domain: secret.domain.clone(),
        ports: secret.ports.clone(),
        place: secret.place.clone(),
        value: SecretText::new(known.value.to_string()),
    };
    rules().zip(values).map(one).collect()
}

/// A source as a policy has it, but for what only whoever wrote it should see.
fn spelled(source: &SecretSource) -> String {
    match source {
        SecretSource::Env(name) => format!("{{env: {name}}}"),
        SecretSource::File(path) => format!("{{file: \"{path}\"}}"),
        SecretSource::Command(words) => match words.first() {
            Some(program) => format!("{{command: [{program}, …]}}"),
            None => "{command: […]}".to_owned(),
        },
    }
}

/// What else the policy has of secrets, where a look at a variable or a file tells: the login of a proxy, what MCP
/// servers are told. Programs that print one are run when it is needed.
pub(crate) fn other_values(capability: &Capability, places: &Places) -> Vec<KnownSecret> {
    let proxy = capability.upstream_proxy.iter();
    let proxy = proxy.filter_map(|rule| rule.value.credentials.as_ref());
    let proxy = proxy.map(|source| ("upstream_proxy".to_owned(), source));
    let layers = capability.tools.layers();
    let servers = layers.flat_map(|layer| layer.servers.iter().flatten());
    let servers = servers.flat_map(|(name, rule)| {
        let headers = rule.value.headers();
        headers
            .iter()
            .map(move |header| (name.to_string(), &header.source))
    });
    let looked_at = proxy
        .chain(servers)
        .filter(|(_, source)| !matches!(source, SecretSource::Command(_)));
    let known = looked_at.filter_map(|(name, source)| {
        Some(KnownSecret {
            placeholder: placeholder_of(&name),
            name,
            // Whoever needs it says what is wrong with it.
            value: read(source, places).ok()?,
        })
    });
    known.collect()
}

/// What an MCP server is told in a header, as it is sent. `what` names it in an error.
///
/// # Errors
/// When it is not where the policy says, or can't stand in a header.
pub fn server_header(
    header: &ServerHeader,
    what: &str,
    places: &Places,
) -> Result<Zeroizing<String>, RunError> {
    let value = for_header(&header.source, what, places)?;
    Ok(match header.place {
        SecretPlace::Bearer => Zeroizing::new(format!("Bearer {}", *value)),
        SecretPlace::Header(_) => value,
    })
}

fn for_header(
    source: &SecretSource,
    what: &str,
    places: &Places,
) -> Result<Zeroizing<String>, RunError> {
    let fail = |why: String| RunError::Refused {
        what: format!("{what}: {why}"),
        hint: hint(source),
    };
    let value = read(source, places).map_err(fail)?;
    if value.is_empty() || value.bytes().any(|byte| !(b' '..=b'~').contains(&byte)) {
        return Err(fail(format!(
            "{source} holds nothing that can stand in a header"
        )));
    }
    Ok(value)
}

/// The credentials of a proxy, as it wants to see them.
pub(super) fn credentials(
    source: &SecretSource,
    origin: &Origin,
    places: &Places,
) -> Result<Zeroizing<String>, RunError> {
    read(source, places).map_err(|why| RunError::Refused {
        what: format!("{origin}: upstream_proxy: {why}"),
        hint: hint(source),
    })
}

fn hint(source: &SecretSource) -> String {
    match source {
        SecretSource::Env(name) => format!("set {name} where belljar is started"),
        SecretSource::File(path) => format!("put the secret alone into {path}, readable to you"),
        SecretSource::Command(_) => "the command must print the secret and end with 0".to_owned(),
    }
}

/// A secret without its final line end. An error never shows any of it.
fn read(source: &SecretSource, places: &Places) -> Result<Zeroizing<String>, String> {
    let text = match source {
        SecretSource::Env(name) => Zeroizing::new(
            std::env::var_os(name)
                .ok_or_else(|| format!("the variable {name} is not set"))?
                .into_encoded_bytes(),
        ),
        SecretSource::File(rule) => {
            let path = rule
                .resolve(places)
                .ok_or_else(|| format!("{rule} is nowhere on this host"))?;
            let file = std::fs::File::open(&path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            read_whole(file).map_err(|error| format!("{}: {error}", path.display()))?
        }
        SecretSource::Command(words) => run(words)?,
    };
    let mut text = Zeroizing::new(
        std::str::from_utf8(&text)
            .map_err(|_| "it is not text".to_owned())?
            .to_owned(),
    );
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

fn read_whole(from: impl std::io::Read) -> Result<Zeroizing<Vec<u8>>, String> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(LONGEST as usize + 1));
    from.take(LONGEST + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if bytes.len() as u64 > LONGEST {
        return Err(format!("longer than {LONGEST} bytes"));
    }
    Ok(bytes)
}

fn run(words: &[String]) -> Result<Zeroizing<Vec<u8>>, String> {
    let (program, arguments) = words.split_first().ok_or("no command")?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    let printed = match child.stdout.take() {
        Some(out) => std::thread::spawn(move || read_whole(out)),
        None => return Err(format!("{program}: it has no output")),
    };
    let ended = await_end(&mut child, Instant::now() + PATIENCE);
    if ended.is_none() {
        let _ = child.kill();
        let _ = child.wait();
        return Err(format!("{program} did not end in {PATIENCE:?}"));
    }
    let bytes = printed
        .join()
        .map_err(|_| format!("{program}: its output could not be read"))??;
    match ended {
        Some(status) if status.success() => Ok(bytes),
        Some(status) => Err(format!("{program} failed ({status})")),
        None => Err(format!("{program} did not end")),
    }
}

/// Looks ever more seldom: most such commands take milliseconds, some ask a person.
fn await_end(child: &mut Child, deadline: Instant) -> Option<std::process::ExitStatus> {
    let mut pause = Duration::from_millis(1);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(50));
            }
            Ok(None) | Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> Places {
        Places {
            home: "/nonexistent".into(),
            work: "/".into(),
            homes: Vec::new(),
        }
    }

    fn command(words: &[&str]) -> SecretSource {
        SecretSource::Command(words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn what_a_command_prints_is_taken_without_its_line_end() {
        let read = |words: &[&str]| read(&command(words), &places()).map(|text| text.to_string());
        assert_eq!(read(&["printf", "key\\n"]), Ok("key".to_owned()));
        assert_eq!(read(&["printf", "a\\nb\\r\\n"]), Ok("a\nb".to_owned()));
        assert!(read(&["false"]).is_err());
        assert!(read(&["/nonexistent/program"]).is_err());
    }

    #[test]
    fn more_than_a_secret_can_be_is_refused_without_being_held() {
        let endless = command(&["head", "-c", "1000000", "/dev/zero"]);
        assert!(read(&endless, &places()).is_err());
    }

    #[test]
    fn an_error_says_where_and_never_what() {
        let said = read(&command(&["sh", "-c", "echo hunter2; exit 3"]), &places()).unwrap_err();
        assert!(!said.contains("hunter2"), "{said}");
        let said = read(
            &SecretSource::Env("NO_SUCH_VARIABLE_4711".into()),
            &places(),
        );
        assert!(said.unwrap_err().contains("NO_SUCH_VARIABLE_4711"));
    }
}
