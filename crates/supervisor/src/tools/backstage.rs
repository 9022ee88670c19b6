//! What stands behind a policy's servers and is not shown to agents.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use belljar_manifest::ReadError;
use belljar_policy::{Capability, McpServer, Origin, PathRule, Rule};
use serde::{Deserialize, Serialize};

use crate::error::RunError;

/// The capability files that `mcp.servers` name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerFiles {
    /// Their texts, by the name that stands in the policy.
    pub texts: BTreeMap<String, String>,
    /// Where they are, as far as that is on this machine: no box may change them.
    #[serde(default)]
    pub paths: Vec<PathBuf>,
}

impl ServerFiles {
    /// Reads the files, which are beside the policy's own.
    ///
    /// # Errors
    /// When one can't be read, or the first thing wrong with it.
    pub fn read(capability: &Capability, policy: Option<&Path>) -> Result<Self, ReadError> {
        let beside = policy.and_then(Path::parent).unwrap_or(Path::new("."));
        let mut files = Self::default();
        for name in named(capability) {
            let path = beside.join(name);
            // Told here, with its place.
            belljar_manifest::read_capability_file(&path)?;
            let bytes = belljar_manifest::read_bounded(&path, &path.display().to_string())?;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            files.texts.insert(name.to_owned(), text);
            files.paths.extend(path.canonicalize());
        }
        Ok(files)
    }

    /// Keeps a box from changing them, and whom its servers are known by.
    pub fn protect_from(&self, capability: &mut Capability) {
        let paths = self.paths.iter().cloned().map(PathRule::Root);
        let rules = paths.chain(authorities(capability));
        let rules: Vec<_> = rules
            .map(|path| Rule::new(path, Origin::built_in()))
            .collect();
        capability.filesystem.protected.extend(rules);
    }
}

/// The files that a policy names.
fn named(capability: &Capability) -> impl Iterator<Item = &str> {
    let servers = capability.tools.all_servers().into_values();
    servers.filter_map(|rule| match &rule.value {
        McpServer::Command { capability, .. } => capability.as_deref(),
        McpServer::Url { .. } | McpServer::Unix { .. } => None,
    })
}

/// The files of certificates that a policy's servers are known by. Each replica's gateway reads them anew.
fn authorities(capability: &Capability) -> Vec<PathRule> {
    let servers = capability.tools.all_servers().into_values();
    let named = servers.filter_map(|rule| match &rule.value {
        McpServer::Url { ca, .. } => ca.clone(),
        McpServer::Command { .. } | McpServer::Unix { .. } => None,
    });
    named.collect()
}

/// What servers are given and agents do not see, though their manifests carry the policy: values of variables are withheld there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backstage {
    files: ServerFiles,
    /// Variables, by server.
    env: BTreeMap<String, BTreeMap<String, String>>,
}

impl Backstage {
    /// Takes it out of a policy. Every server can be started from what is left and this.
    ///
    /// # Errors
    /// When a file is missing or wrong.
    pub fn behind(capability: &mut Capability, files: ServerFiles) -> Result<Self, RunError> {
        for name in named(capability) {
            parsed(&files, name)?;
        }
        files.protect_from(capability);
        let env = capability.tools.withhold_server_env();
        Ok(Self { files, env })
    }

    /// What a server's box may do: its own file, or the profile `strict` for as long as its agent lives.
    pub(super) fn capability(&self, file: Option<&str>) -> Result<Capability, RunError> {
        let mut capability = match file {
            Some(name) => parsed(&self.files, name)?,
            None => {
                let strict = belljar_manifest::profile("strict");
                let mut strict = strict.ok_or_else(|| RunError::Invalid {
                    what: "no profile strict".into(),
                    hint: "`belljar profile list` names them".into(),
                })?;
                strict.limits.wall_time = None;
                strict
            }
        };
        self.files.protect_from(&mut capability);
        Ok(capability)
    }

    /// A policy's text as it may be shown: without the values of servers' variables. Where they can't be told from the rest of
    /// it, it is not shown.
    pub(crate) fn redacted(&self, policy: &str) -> String {
        let all = self.env.values().flatten();
        let without = |line: &str| {
            let mut line = line.to_owned();
            for (name, value) in all.clone().filter(|(_, value)| !value.is_empty()) {
                if let Some((before, after)) = line.split_once(name.as_str()) {
                    line = format!("{before}{name}{}", after.replacen(value, "withheld", 1));
                }
            }
            line
        };
        let text: String = policy.split_inclusive('\n').map(without).collect();
        let is_without = |mut shown: Capability| {
            let values = shown.tools.withhold_server_env().into_values();
            values
                .flatten()
                .all(|(_, value)| value.is_empty() || value == "withheld")
        };
        let parsed = belljar_manifest::parse_capability("policy", text.as_bytes());
        if parsed.is_ok_and(is_without) {
            text
        } else {
            "# not shown: it has values of servers' variables in it\n".to_owned()
        }
    }

    /// The variables of a server.
    pub(super) fn env(&self, server: &str) -> Vec<(String, String)> {
        let own = self.env.get(server).cloned().unwrap_or_default();
        own.into_iter().collect()
    }
}

fn parsed(files: &ServerFiles, name: &str) -> Result<Capability, RunError> {
    let text = files.texts.get(name).ok_or_else(|| RunError::Invalid {
        what: format!("mcp.servers name the capability {name}, and its text was not given"),
        hint: "give it in server_capabilities, by this name".into(),
    })?;
    belljar_manifest::parse_capability(name, text.as_bytes()).map_err(|error| RunError::Invalid {
        what: error.to_string(),
        hint: error.hint.clone().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> Capability {
        belljar_manifest::parse_capability("policy.yaml", text.as_bytes()).unwrap()
    }

    const POLICY: &str = "mcp: {servers: {one: {command: [x], capability: one.yaml, env: {TOKEN: tulip}}, two: {command: [y]}}}\n";

    #[test]
    fn what_a_manifest_carries_has_no_values_and_servers_have_them() {
        let mut capability = policy(POLICY);
        let mut files = ServerFiles::default();
        let text = "extends: moderate\n".to_owned();
        files.texts.insert("one.yaml".to_owned(), text);
        let backstage = Backstage::behind(&mut capability, files).unwrap();
        let shown = serde_json::to_string(&capability).unwrap();
        assert!(!shown.contains("tulip"), "{shown}");
        assert!(shown.contains("TOKEN"), "{shown}");
        let expected = vec![("TOKEN".to_owned(), "tulip".to_owned())];
        assert_eq!(backstage.env("one"), expected);
        assert_eq!(backstage.env("two"), []);
        let own = backstage.capability(Some("one.yaml")).unwrap();
        assert_eq!(own.limits, policy("extends: moderate\n").limits);
        // It is there as long as its agent: not for the minute that a run of `strict` has.
        let usual = backstage.capability(None).unwrap();
        assert_eq!(usual.limits.wall_time, None);
        assert_eq!(
            usual.limits.memory_bytes,
            policy("extends: strict\n").limits.memory_bytes
        );
    }

    #[test]
    fn a_policy_is_shown_without_values_or_not_at_all() {
        let shown = |text: &str| {
            let mut capability = policy(text);
            Backstage::behind(&mut capability, ServerFiles::default())
                .unwrap()
                .redacted(text)
        };
        let plain = "mcp:\n  servers:\n    one: {command: [x], env: {A: tulip, B: 'a rose'}}\n";
        let text = shown(plain);
        assert_eq!(
            text,
            plain
                .replace("tulip", "withheld")
                .replace("a rose", "withheld")
        );
        let disguised = "mcp: {servers: {one: {command: [x], env: {A: \"tu\\x6cip\"}}}}\n";
        assert!(!shown(disguised).contains("ip"), "{}", shown(disguised));
        assert_eq!(shown("extends: strict\n"), "extends: strict\n");
    }

    #[test]
    fn nobody_changes_whom_a_server_is_known_by() {
        let text = "extends: moderate\nmcp: {servers: {web: {url: 'https://mcp.example/x', ca: ./ca.pem}}}\n";
        let mut capability = policy(text);
        let places = belljar_policy::Places {
            home: "/home/ada".into(),
            work: "/home/ada/project".into(),
            homes: Vec::new(),
        };
        let may_write = |capability: &Capability| {
            let table = belljar_policy::PathTable::resolve(&capability.filesystem, &places);
            let file = Path::new("/home/ada/project/ca.pem");
            table.decide(file, belljar_policy::FileOp::Write).is_allow()
        };
        assert!(may_write(&capability));
        Backstage::behind(&mut capability, ServerFiles::default()).unwrap();
        assert!(!may_write(&capability));
    }

    #[test]
    fn a_server_whose_file_is_missing_or_wrong_starts_nobody() {
        let mut files = ServerFiles::default();
        let missing = Backstage::behind(&mut policy(POLICY), files.clone());
        assert!(missing.unwrap_err().to_string().contains("one.yaml"));
        let wrong = "network: everything\n".to_owned();
        files.texts.insert("one.yaml".to_owned(), wrong);
        let wrong = Backstage::behind(&mut policy(POLICY), files);
        assert!(wrong.unwrap_err().to_string().contains("one.yaml"));
    }
}
