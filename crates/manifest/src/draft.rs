//! A capability file in the making: what goes into it, with the reason for each line, and its text.
//!
//! Some of what it holds was chosen by a program that is not trusted (names of files, of hosts). So every value is
//! quoted, and nothing unprintable gets into a value or a comment as itself.

use std::fmt::Write as _;

use crate::carry::CarriedText;
use belljar_policy::{FsMode, HomeMode, Permission};

/// Whether a line counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It does.
    Granted,
    /// It is a comment: something that somebody should decide about.
    Proposed,
}

/// A path of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathLine {
    /// As files write it: `.`, `~/x`, `/x`.
    pub path: String,
    /// Why it is there.
    pub why: String,
    /// Whether it counts.
    pub standing: Standing,
}

/// An item of `network_egress_rules`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLine {
    /// The host.
    pub domain: String,
    /// Its ports.
    pub ports: Vec<u16>,
    /// Requests per minute, where the usual number is too small.
    pub rate: Option<u32>,
    /// Whether it may be at a private address.
    pub private: bool,
    /// Why it is there.
    pub why: String,
    /// Whether it counts.
    pub standing: Standing,
}

/// An item of `resource_limits`.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitLine {
    /// The key.
    pub key: &'static str,
    /// The number, or nothing for no limit.
    pub value: Option<f64>,
    /// Why it is that.
    pub why: String,
}

/// A capability file in the making. The order of all lists is the order in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// What to know before reading it.
    pub heading: Vec<String>,
    /// The profile it changes.
    pub extends: Option<CarriedText>,
    /// How much of the host's tree is there, and why.
    pub mode: (FsMode, String),
    /// What may be written.
    pub writable: Vec<PathLine>,
    /// What may be read beyond that.
    pub readable: Vec<PathLine>,
    /// What is not there, beside what never is.
    pub hidden: Vec<String>,
    /// What may not be written, beside what never may.
    pub protected: Vec<String>,
    /// What is at the home directory.
    pub home: HomeMode,
    /// Whether writes are kept aside.
    pub keeps_aside: bool,
    /// Rules of another file that say more than host and port; each an item of a list.
    pub carried_rules: Vec<CarriedText>,
    /// Where it may connect.
    pub hosts: Vec<HostLine>,
    /// Remarks on the network that no rule can express.
    pub host_remarks: Vec<String>,
    /// What it may use.
    pub limits: Vec<LimitLine>,
    /// What happens when the budget is used up, where that is said beside the limits.
    pub on_budget: Option<&'static str>,
    /// Its named powers, each with a reason.
    pub permissions: Vec<(Permission, String)>,
    /// The variables it sees; `None` is the base ones.
    pub variables: Option<Vec<String>>,
    /// What to know about the variables.
    pub variables_remark: String,
    /// Whole sections of another file.
    pub sections: Vec<CarriedText>,
    /// Programs that were run, for whoever reads the file.
    pub programs: Vec<String>,
}

impl Draft {
    /// The file's text.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        let mut file = String::new();
        comments(&mut file, "", &self.heading);
        file.push('\n');
        if let Some(extends) = &self.extends {
            carried(&mut file, "", extends);
        }
        line(&mut file, "sandbox_tier: seccomp", "", Standing::Granted);
        file.push('\n');
        self.filesystem(&mut file);
        file.push('\n');
        self.network(&mut file);
        file.push('\n');
        file.push_str("resource_limits:\n");
        for limit in &self.limits {
            let value = limit.value.map_or("null".to_owned(), |n| n.to_string());
            let text = format!("  {}: {value}", limit.key);
            line(&mut file, &text, &limit.why, Standing::Granted);
        }
        if let Some(on_budget) = self.on_budget {
            let text = format!("  on_budget: {on_budget}");
            line(
                &mut file,
                &text,
                "as in the learning run",
                Standing::Granted,
            );
        }
        file.push('\n');
        self.powers(&mut file);
        for section in &self.sections {
            file.push('\n');
            carried(&mut file, "", section);
        }
        if !self.programs.is_empty() {
            file.push_str("\n# Programs that were run:\n");
            for program in &self.programs {
                comments(&mut file, "", &[format!("  {program}")]);
            }
        }
        file
    }

    fn filesystem(&self, file: &mut String) {
        let (mode, why) = &self.mode;
        file.push_str("filesystem_config:\n");
        let text = format!("  mode: {}", mode.as_str());
        line(file, &text, why, Standing::Granted);
        for (key, lines) in [
            ("writable_paths", &self.writable),
            ("readable_paths", &self.readable),
        ] {
            // A list of nothing but comments would be no list.
            let is_list = lines.iter().any(|line| line.standing == Standing::Granted);
            let standing = match is_list {
                true => Standing::Granted,
                false => Standing::Proposed,
            };
            if !lines.is_empty() {
                line(file, &format!("  {key}:"), "", standing);
            }
            for entry in lines {
                let text = format!("    - {}", quoted(&entry.path));
                line(file, &text, &entry.why, entry.standing);
            }
        }
        if self.home != HomeMode::ReadOnly {
            let text = format!("  home: {}", self.home.as_str());
            line(file, &text, "as in the learning run", Standing::Granted);
        }
        if self.keeps_aside {
            let why = "as in the learning run";
            line(file, "  workspace: overlay", why, Standing::Granted);
        }
        for (key, paths) in [
            ("hidden_paths", &self.hidden),
            ("protected_paths", &self.protected),
        ] {
            if !paths.is_empty() {
                let paths: Vec<String> = paths.iter().map(|path| quoted(path)).collect();
                let text = format!("  {key}: [{}]", paths.join(", "));
                line(file, &text, "as in the learning run", Standing::Granted);
            }
        }
    }

    fn network(&self, file: &mut String) {
        let granted = |line: &&HostLine| line.standing == Standing::Granted;
        if self.hosts.iter().any(|line| granted(&line)) || !self.carried_rules.is_empty() {
            file.push_str("network_egress_rules:\n");
        } else {
            line(
                file,
                "network_egress_rules: []",
                "it needs no host",
                Standing::Granted,
            );
        }
        for rule in &self.carried_rules {
            carried(file, "  ", rule);
        }
        for host in &self.hosts {
            let ports: Vec<String> = host.ports.iter().map(u16::to_string).collect();
            let mut text = format!("  - {{domain: {}", quoted(&host.domain));
            if !ports.is_empty() {
                let _ = write!(text, ", ports: [{}]", ports.join(", "));
            }
            if let Some(rate) = host.rate {
                let _ = write!(text, ", rate_limit_per_min: {rate}");
            }
            if host.private {
                text.push_str(", allow_private: true");
            }
            text.push('}');
            line(file, &text, &host.why, host.standing);
        }
        comments(file, "  ", &self.host_remarks);
    }

    fn powers(&self, file: &mut String) {
        if self.permissions.is_empty() {
            line(
                file,
                "permissions: []",
                "it started no process",
                Standing::Granted,
            );
        } else {
            file.push_str("permissions:\n");
        }
        for (permission, why) in &self.permissions {
            let text = format!("  - {}", permission.as_str());
            line(file, &text, why, Standing::Granted);
        }
        file.push('\n');
        comments(file, "", std::slice::from_ref(&self.variables_remark));
        match &self.variables {
            None => file.push_str("env_allowlist: null\n"),
            Some(names) => {
                let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
                let _ = writeln!(file, "env_allowlist: [{}]", names.join(", "));
            }
        }
    }
}

/// Comments begin here, where the text before leaves room.
const COLUMN: usize = 44;

fn line(file: &mut String, text: &str, why: &str, standing: Standing) {
    let text = match standing {
        Standing::Granted => text.to_owned(),
        // In front of the text but behind its indentation.
        Standing::Proposed => {
            let indent = text.len() - text.trim_start().len();
            format!("{}# {}", &text[..indent], &text[indent..])
        }
    };
    if why.is_empty() {
        let _ = writeln!(file, "{text}");
    } else {
        let _ = writeln!(file, "{text:<COLUMN$} # {}", plain(why));
    }
}

fn comments(file: &mut String, indent: &str, lines: &[String]) {
    for text in lines {
        let _ = writeln!(file, "{indent}# {}", plain(text));
    }
}

/// What the user wrote elsewhere stays as it is.
fn carried(file: &mut String, indent: &str, text: &CarriedText) {
    if !text.why.is_empty() {
        comments(file, indent, std::slice::from_ref(&text.why));
    }
    for line in &text.lines {
        let indent = if line.is_empty() { "" } else { indent };
        let _ = writeln!(file, "{indent}{line}");
    }
}

/// A text as a YAML scalar that means exactly that text.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if is_unsafe(c) => escape(&mut out, c),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A text as it may stand in a comment.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match is_unsafe(c) {
            true => escape(&mut out, c),
            false => out.push(c),
        }
    }
    out
}

/// What is harmful to a reader, and what a reader of YAML may take for something else.
fn is_unsafe(c: char) -> bool {
    belljar_policy::is_harmful(c) || matches!(c, '\u{202f}' | '\u{fff0}'..='\u{ffff}')
}

fn escape(out: &mut String, c: char) {
    // Writing to a String can't fail.
    let _ = match u32::from(c) {
        n @ 0..=0xff => write!(out, "\\x{n:02x}"),
        n @ 0x100..=0xffff => write!(out, "\\u{n:04x}"),
        n => write!(out, "\\U{n:08x}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn draft() -> Draft {
        Draft {
            heading: vec!["learned".to_owned()],
            extends: None,
            hidden: Vec::new(),
            protected: Vec::new(),
            home: HomeMode::ReadOnly,
            keeps_aside: false,
            carried_rules: Vec::new(),
            sections: Vec::new(),
            mode: (FsMode::ReadWrite, "it writes".to_owned()),
            writable: Vec::new(),
            readable: Vec::new(),
            hosts: Vec::new(),
            host_remarks: Vec::new(),
            limits: vec![LimitLine {
                key: "max_memory_mb",
                value: Some(64.0),
                why: "peak 20 MiB".to_owned(),
            }],
            on_budget: None,
            permissions: Vec::new(),
            variables: None,
            variables_remark: "can't be seen".to_owned(),
            programs: Vec::new(),
        }
    }

    fn path(path: &str, standing: Standing) -> PathLine {
        PathLine {
            path: path.to_owned(),
            why: format!("because of {path}"),
            standing,
        }
    }

    fn parsed(draft: &Draft) -> belljar_policy::Capability {
        let text = draft.to_yaml();
        crate::parse_capability("learned.yaml", text.as_bytes())
            .unwrap_or_else(|error| panic!("{error:?}\n{text}"))
    }

    #[test]
    fn what_is_proposed_does_not_count() {
        let mut draft = draft();
        draft.writable = vec![
            path(".", Standing::Granted),
            path("~/x", Standing::Proposed),
        ];
        draft.readable = vec![path("~/.ssh", Standing::Proposed)];
        let host = |domain: &str, standing| HostLine {
            domain: domain.to_owned(),
            ports: vec![443],
            rate: None,
            private: false,
            why: String::new(),
            standing,
        };
        draft.hosts = vec![host("10.0.0.1", Standing::Proposed)];
        let capability = parsed(&draft);
        assert_eq!(capability.filesystem.writable.len(), 1);
        assert!(capability.filesystem.readable.is_empty());
        assert!(capability.egress.is_empty());
        draft.hosts.push(host("a.example", Standing::Granted));
        assert_eq!(parsed(&draft).egress.len(), 1);
    }

    proptest! {
        /// Whatever an agent calls its files, the file that is written says nothing else than meant.
        #[test]
        fn names_mean_themselves_and_comments_stay_comments(
            name in "[^\0*?\\[]{1,40}",
            spice in prop::sample::select(vec!["", "\n", "\r", "\u{85}", "\u{2028}", "\u{feff}", "\x1b[2J", "\"", "\\", "# ", "\u{d7ff}"]),
        ) {
            let name = format!("{spice}{name}");
            let Ok(rule) = belljar_policy::PathRule::parse(&format!("/{name}")) else { return Ok(()); };
            // Comments take anything; values, what files may hold at all.
            let value = match name.chars().any(char::is_control) {
                true => "plain",
                false => &name,
            };
            let rule = match value {
                "plain" => belljar_policy::PathRule::Root("/plain".into()),
                _ => rule,
            };
            let mut draft = draft();
            draft.heading.push(name.clone());
            draft.host_remarks.push(name.clone());
            draft.programs.push(name.clone());
            draft.writable = vec![PathLine {
                path: format!("/{value}"),
                why: name.clone(),
                standing: Standing::Granted,
            }];
            draft.readable = vec![path(&format!("/{name}"), Standing::Proposed)];
            let capability = parsed(&draft);
            prop_assert_eq!(capability.filesystem.writable.len(), 1);
            prop_assert_eq!(&capability.filesystem.writable[0].value, &rule);
            prop_assert!(capability.filesystem.readable.is_empty());
            prop_assert!(capability.egress.is_empty() && capability.permissions.is_empty());
        }
    }
}
