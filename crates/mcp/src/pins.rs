//! What servers said their tools are, when they were first seen. A tool that is new or changed since then is not the
//! tool that somebody agreed to.
//!
//! Pins are kept by server and by what is run for it: another command is another server, and seen for the first time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::private_files::{make_directory, read, replace};

/// The parts of a definition that an agent or a person decides by.
const PINNED: [&str; 6] = [
    "name",
    "title",
    "description",
    "inputSchema",
    "outputSchema",
    "annotations",
];

/// A tool as it was defined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pin {
    /// SHA-256 of the definition.
    pub sha256: String,
    /// The pinned parts, keys in order.
    pub definition: Value,
}

impl Pin {
    /// Of a definition as the server told it.
    #[must_use]
    pub fn of(tool: &Value) -> Self {
        let parts = PINNED
            .iter()
            .filter_map(|key| Some(((*key).to_owned(), sorted(tool.get(key)?))));
        let definition = Value::Object(parts.collect());
        let digest = Sha256::digest(definition.to_string().as_bytes());
        Self {
            sha256: data_encoding::HEXLOWER.encode(&digest),
            definition,
        }
    }
}

/// With the keys of every mapping in order, so that one definition has one text.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let ordered: BTreeMap<&String, &Value> = map.iter().collect();
            Value::Object(
                ordered
                    .into_iter()
                    .map(|(key, value)| (key.clone(), sorted(value)))
                    .collect(),
            )
        }
        Value::Array(items) => items.iter().map(sorted).collect::<Vec<_>>().into(),
        other => other.clone(),
    }
}

/// What is known of one server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerPins {
    /// The server's id.
    pub server: String,
    /// SHA-256 of what is run, or of its address.
    pub digest: String,
    /// The tools that were agreed to.
    pub tools: BTreeMap<String, Pin>,
    /// Those that are new or changed, as last told.
    pub waiting: BTreeMap<String, Pin>,
}

/// What a tool is, compared with its pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// As it was agreed to.
    Pinned,
    /// Seen for the first time, with its server.
    FirstSeen,
    /// The server did not have it before.
    New,
    /// The server defined it otherwise before.
    Changed,
    /// The server told of its tools, and of none by that name.
    Unheard,
}

impl Standing {
    /// The stable word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pinned => "pinned",
            Self::FirstSeen => "first_seen",
            Self::New => "new",
            Self::Changed => "changed",
            Self::Unheard => "unheard",
        }
    }
}

/// The pins of a state directory.
#[derive(Debug)]
pub struct Pins {
    directory: PathBuf,
    known: Mutex<BTreeMap<String, Known>>,
}

/// What this process knows of a server's pins.
#[derive(Debug, Default)]
struct Known {
    pins: ServerPins,
    /// Nothing was pinned before this process, and no tool was told twice yet: pages of the first list.
    is_first_list: bool,
}

impl Pins {
    /// The pins in this state directory; its place is made.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn open(state: &Path) -> io::Result<Self> {
        let directory = state.join("mcp").join("pins");
        make_directory(&directory)?;
        Ok(Self {
            directory,
            known: Mutex::default(),
        })
    }

    /// Compares the tools that a server told with its pins, in their order. What was never seen of a server never seen is
    /// pinned; what else is new or changed waits.
    ///
    /// # Errors
    /// When pins can't be read or written: then nothing is known, and no tool may pass.
    pub fn compare(
        &self,
        server: &str,
        digest: &str,
        tools: &[(&str, Pin)],
    ) -> io::Result<Vec<Standing>> {
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let _lock = self.lock()?;
        let file = self.file(server, digest);
        let stored = load(&file)?;
        let known = all.entry(key(server, digest)).or_default();
        known.is_first_list = match &stored {
            None => true,
            Some(pins) => {
                known.is_first_list && !tools.iter().any(|(name, _)| pins.tools.contains_key(*name))
            }
        };
        known.pins = stored.unwrap_or_else(|| ServerPins {
            server: server.to_owned(),
            digest: digest.to_owned(),
            ..ServerPins::default()
        });
        let before = known.pins.clone();
        let standings: Vec<_> = tools
            .iter()
            .map(|(name, pin)| known.compare(name, pin))
            .collect();
        if known.pins != before || tools.is_empty() {
            replace(&file, &serde_json::to_vec_pretty(&known.pins)?)?;
        }
        Ok(standings)
    }

    /// How a tool that is called stands, by what its server last told. A server that told nothing has nothing to change.
    ///
    /// # Errors
    /// When pins can't be read.
    pub fn standing(&self, server: &str, digest: &str, tool: &str) -> io::Result<Standing> {
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let name = key(server, digest);
        if !all.contains_key(&name) {
            let Some(pins) = load(&self.file(server, digest))? else {
                return Ok(Standing::FirstSeen);
            };
            all.insert(
                name.clone(),
                Known {
                    pins,
                    is_first_list: false,
                },
            );
        }
        let Some(known) = all.get_mut(&name) else {
            return Ok(Standing::New);
        };
        let waits = |pins: &ServerPins| match (
            pins.waiting.contains_key(tool),
            pins.tools.contains_key(tool),
        ) {
            (true, true) => Standing::Changed,
            (true, false) => Standing::New,
            (false, false) => Standing::Unheard,
            (false, true) => Standing::Pinned,
        };
        let standing = waits(&known.pins);
        if standing == Standing::Pinned {
            return Ok(standing);
        }
        // It may have been accepted since.
        if let Some(pins) = load(&self.file(server, digest))? {
            known.pins = pins;
        }
        Ok(waits(&known.pins))
    }

    /// Everything that is pinned.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn all(&self) -> io::Result<Vec<ServerPins>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "json") {
                found.extend(load(&path)?);
            }
        }
        found.sort_by(|a: &ServerPins, b| (&a.server, &a.digest).cmp(&(&b.server, &b.digest)));
        Ok(found)
    }

    /// Agrees to what waits: of every server or one, every tool or one. Says which.
    ///
    /// # Errors
    /// When pins can't be read or written.
    pub fn accept(
        &self,
        server: Option<&str>,
        tool: Option<&str>,
    ) -> io::Result<Vec<(String, String)>> {
        let _lock = self.lock()?;
        let mut accepted = Vec::new();
        for mut pins in self.all()? {
            if server.is_some_and(|server| server != pins.server) {
                continue;
            }
            let chosen: BTreeSet<String> = pins
                .waiting
                .keys()
                .filter(|name| tool.is_none_or(|tool| tool == name.as_str()))
                .cloned()
                .collect();
            for name in &chosen {
                if let Some(pin) = pins.waiting.remove(name) {
                    pins.tools.insert(name.clone(), pin);
                    accepted.push((pins.server.clone(), name.clone()));
                }
            }
            if !chosen.is_empty() {
                replace(
                    &self.file(&pins.server, &pins.digest),
                    &serde_json::to_vec_pretty(&pins)?,
                )?;
            }
        }
        Ok(accepted)
    }

    /// Pins exactly these tools, whatever was pinned before.
    ///
    /// # Errors
    /// When pins can't be written.
    pub fn pin(&self, server: &str, digest: &str, tools: BTreeMap<String, Pin>) -> io::Result<()> {
        let _lock = self.lock()?;
        let pins = ServerPins {
            server: server.to_owned(),
            digest: digest.to_owned(),
            tools,
            waiting: BTreeMap::new(),
        };
        replace(
            &self.file(server, digest),
            &serde_json::to_vec_pretty(&pins)?,
        )
    }

    fn file(&self, server: &str, digest: &str) -> PathBuf {
        // Ids have no `/`, but nothing here depends on it.
        let name = Sha256::digest(key(server, digest).as_bytes());
        let name = data_encoding::HEXLOWER.encode(&name[..12]);
        self.directory.join(format!("{name}.json"))
    }

    /// Only one process changes pins at a time.
    fn lock(&self) -> io::Result<File> {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.directory.join("lock"))?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    }
}

impl Known {
    fn compare(&mut self, name: &str, pin: &Pin) -> Standing {
        let pins = &mut self.pins;
        match pins.tools.get(name) {
            Some(own) if own.sha256 == pin.sha256 => {
                pins.waiting.remove(name);
                Standing::Pinned
            }
            None if self.is_first_list => {
                pins.tools.insert(name.to_owned(), pin.clone());
                Standing::FirstSeen
            }
            own => {
                let standing = if own.is_some() {
                    Standing::Changed
                } else {
                    Standing::New
                };
                pins.waiting.insert(name.to_owned(), pin.clone());
                standing
            }
        }
    }
}

fn key(server: &str, digest: &str) -> String {
    format!("{server}\0{digest}")
}

fn load(file: &Path) -> io::Result<Option<ServerPins>> {
    match read(file)? {
        None => Ok(None),
        Some(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
    }
}

/// What changed between two definitions, as a unified diff; of a new tool all of it.
#[must_use]
pub fn difference(name: &str, old: Option<&Pin>, new: &Pin) -> String {
    let text = |pin: &Pin| format!("{:#}\n", pin.definition);
    let (before, after) = (old.map(text).unwrap_or_default(), text(new));
    let diff = similar::TextDiff::from_lines(&before, &after);
    let (from, to) = (format!("{name} (pinned)"), format!("{name} (told now)"));
    diff.unified_diff()
        .context_radius(2)
        .header(&from, &to)
        .to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tools(list: &[Value]) -> Vec<(&str, Pin)> {
        list.iter()
            .map(|tool| (tool["name"].as_str().unwrap(), Pin::of(tool)))
            .collect()
    }

    #[test]
    fn a_definition_has_one_digest_whatever_its_order() {
        let one = json!({"name": "a", "description": "d", "inputSchema": {"x": 1, "y": [{"p": 1, "q": 2}]}});
        let two = json!({"inputSchema": {"y": [{"q": 2, "p": 1}], "x": 1}, "description": "d", "name": "a", "_meta": {"z": 1}});
        assert_eq!(Pin::of(&one), Pin::of(&two));
        let other = json!({"name": "a", "description": "d!", "inputSchema": {"x": 1, "y": [{"p": 1, "q": 2}]}});
        assert_ne!(Pin::of(&one).sha256, Pin::of(&other).sha256);
    }

    #[test]
    fn the_first_list_is_pinned_and_what_comes_after_waits() {
        let scratch = tempfile::tempdir().unwrap();
        let pins = Pins::open(scratch.path()).unwrap();
        let compare = |pins: &Pins, list: &[Value]| pins.compare("s", "d", &tools(list)).unwrap();
        let (a, b, c) = (
            json!({"name": "a"}),
            json!({"name": "b"}),
            json!({"name": "c"}),
        );
        assert_eq!(pins.standing("s", "d", "a").unwrap(), Standing::FirstSeen);
        // Two pages of one list.
        assert_eq!(
            compare(&pins, std::slice::from_ref(&a)),
            [Standing::FirstSeen]
        );
        assert_eq!(
            compare(&pins, std::slice::from_ref(&b)),
            [Standing::FirstSeen]
        );
        // The list begins anew: what was not in it waits.
        assert_eq!(
            compare(&pins, &[a.clone(), b.clone(), c.clone()]),
            [Standing::Pinned, Standing::Pinned, Standing::New]
        );
        assert_eq!(compare(&pins, std::slice::from_ref(&c)), [Standing::New]);
        let changed = json!({"name": "a", "description": "now sends your keys"});
        let again = Pins::open(scratch.path()).unwrap();
        assert_eq!(
            compare(&again, &[changed.clone(), b]),
            [Standing::Changed, Standing::Pinned]
        );
        assert_eq!(again.standing("s", "d", "a").unwrap(), Standing::Changed);
        assert_eq!(again.standing("s", "d", "zzz").unwrap(), Standing::Unheard);
        let shown = again.all().unwrap();
        let diff = difference("s:a", shown[0].tools.get("a"), &shown[0].waiting["a"]);
        assert!(
            diff.contains("+  \"description\": \"now sends your keys\""),
            "{diff}"
        );
        // Another process accepts; this one notices.
        assert_eq!(
            Pins::open(scratch.path())
                .unwrap()
                .accept(Some("s"), Some("a"))
                .unwrap(),
            [("s".to_owned(), "a".to_owned())]
        );
        assert_eq!(again.standing("s", "d", "a").unwrap(), Standing::Pinned);
        assert_eq!(compare(&again, &[changed]), [Standing::Pinned]);
        // The same tool told as it was agreed to no longer waits.
        assert_eq!(
            again.all().unwrap()[0].waiting.keys().collect::<Vec<_>>(),
            ["c"]
        );
        // Another command is another server.
        assert_eq!(
            pins.compare("s", "other", &tools(&[c])).unwrap(),
            [Standing::FirstSeen]
        );
    }
}
