//! Which settings in a file of git's make git run a program, or read settings elsewhere.
//!
//! The file is a stranger's. It is read a little more broadly than git reads it: a setting that git would refuse is told
//! all the same.

mod parse;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

/// Settings, by their last word, that name a program in every section that has them.
const PROGRAMS: &[&str] = &[
    "askpass",
    "authorsprog",
    "clean",
    "cmd",
    "command",
    "customcommand",
    "defaultkeycommand",
    "diffcmd",
    "difffilter",
    "driver",
    "editor",
    "external",
    "fsmonitor",
    "gitproxy",
    "helper",
    "hookspath",
    "httpd",
    "alternaterefscommand",
    "packobjectshook",
    "pager",
    "path",
    "process",
    "program",
    "receivepack",
    "recentobjectshook",
    "sendmailcmd",
    "smtpserver",
    "smudge",
    "sshcommand",
    "templatedir",
    "textconv",
    "tocmd",
    "cccmd",
    "headercmd",
    "tunnel",
    "uploadpack",
    "vcs",
    "browser",
];
/// A value is put together from so many lines at most.
const MOST_JOINED: usize = 64;
/// Sections in which every setting does.
const SECTIONS: &[&str] = &["alias", "include", "includeif", "pager", "protocol"];

/// Settings of which `true` or `no` is no program: they switch something on or off.
const SWITCHES: &[&str] = &["fsmonitor"];

/// One setting: `section.key`, in small letters, and what it is set to.
struct Setting {
    section: String,
    key: String,
    value: Vec<u8>,
}

/// What a repository's settings lead to.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    /// Directories of hooks.
    pub(super) hooks: Vec<PathBuf>,
    /// More settings.
    pub(super) settings: Vec<PathBuf>,
    /// Where its files are, if they are not around it.
    pub(super) worktree: Option<PathBuf>,
}

/// The names of the settings that run something, such as `core.fsmonitor`.
///
/// As git reads it, and line by line as well: other programs read repositories too, each in its way, and what one takes for
/// the rest of a value, another takes for a setting.
pub(super) fn programs(text: &[u8]) -> BTreeSet<String> {
    let is_word = |c: &char| c.is_ascii_alphanumeric() || "-_.".contains(*c);
    let settings = parse::as_git(text).into_iter().chain(by_line(text));
    settings
        .filter(|setting| runs(&setting.section, &setting.key, &setting.value))
        .map(|Setting { section, key, .. }| format!("{section}.{key}"))
        .map(|name| name.chars().filter(is_word).take(64).collect())
        .collect()
}

/// Where a repository's settings say that hooks, files and more settings are.
pub(super) fn elsewhere(text: &[u8]) -> Elsewhere {
    let mut found = Elsewhere::default();
    for setting in parse::as_git(text) {
        let path = PathBuf::from(OsString::from_vec(setting.value));
        match (setting.section.as_str(), setting.key.as_str()) {
            ("core", "hookspath") => found.hooks.push(path),
            ("core", "worktree") => found.worktree = Some(path),
            ("include" | "includeif", "path") => found.settings.push(path),
            _ => {}
        }
    }
    found
}

/// Every line for itself. A value goes on behind a backslash, and what it goes on with counts as a line of its own as well.
fn by_line(text: &[u8]) -> Vec<Setting> {
    let text = String::from_utf8_lossy(text);
    let mut found = Vec::new();
    let mut section = String::new();
    let lines: Vec<&str> = text.lines().collect();
    for (number, line) in lines.iter().enumerate() {
        let mut rest = line.trim_start_matches('\u{feff}').trim();
        // Several headers may stand on a line, and a setting after them.
        while let Some(header) = rest.strip_prefix('[') {
            let (name, after) = header_of(header);
            section = name;
            rest = after.trim_start();
        }
        if rest.is_empty() || rest.starts_with(['#', ';']) {
            continue;
        }
        let (key, value) = rest.split_once('=').unwrap_or((rest, "true"));
        let mut value = value.trim().to_owned();
        let mut more = lines.iter().skip(number + 1).take(MOST_JOINED);
        while value.ends_with('\\') {
            value.pop();
            match more.next() {
                Some(more) => value.push_str(more.trim()),
                None => break,
            }
        }
        let plain: String = value.chars().filter(|c| *c != '"' && *c != '\\').collect();
        found.push(Setting {
            section: section.clone(),
            key: key.trim().to_ascii_lowercase(),
            value: plain.trim().as_bytes().to_vec(),
        });
    }
    found
}

fn header_of(header: &str) -> (String, &str) {
    let mut is_quoted = false;
    let mut is_escaped = false;
    let end = header.char_indices().find(|(_, c)| {
        match (*c, is_escaped) {
            (_, true) => is_escaped = false,
            ('\\', false) if is_quoted => is_escaped = true,
            ('"', false) => is_quoted = !is_quoted,
            (']', false) if !is_quoted => return true,
            _ => {}
        }
        false
    });
    let (header, after) = match end {
        Some((at, _)) => (
            header.get(..at).unwrap_or(""),
            header.get(at + 1..).unwrap_or(""),
        ),
        None => (header, ""),
    };
    let word = header
        .trim()
        .split(|c: char| c.is_whitespace() || c == '.' || c == '"');
    let word = word.into_iter().next().unwrap_or_default();
    (word.to_ascii_lowercase(), after)
}

fn runs(section: &str, key: &str, value: &[u8]) -> bool {
    let value = String::from_utf8_lossy(value);
    let is_switch = matches!(
        value.to_ascii_lowercase().as_str(),
        "true" | "false" | "yes" | "no" | "on" | "off" | "0" | "1"
    ) && (SWITCHES.contains(&key) || section == "pager");
    match (section, key) {
        // Where a submodule is, and where a repository's files are.
        ("submodule", "path") => false,
        ("submodule", "update") => value.starts_with('!'),
        ("alias", _) => value.starts_with('!'),
        ("remote" | "url", _) if value.contains("::") => true,
        // Another directory to work in, or to take attributes and settings from.
        ("core", "worktree") => value.starts_with('/'),
        ("url", "insteadof" | "pushinsteadof") => false,
        (section, key) => {
            let is_named = SECTIONS.contains(&section) || PROGRAMS.contains(&key);
            is_named && !value.is_empty() && !is_switch
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_something_is_told_however_it_is_written() {
        for (text, wanted) in [
            ("[core]\n\tfsmonitor = /tmp/p\n", "core.fsmonitor"),
            ("[CORE] FSMonitor=p\n", "core.fsmonitor"),
            ("[core]\nfsmonitor = true\n", ""),
            ("[core]\nbare = false\n[user]\nname = n\n", ""),
            ("[core]\nhooksPath = h", "core.hookspath"),
            ("[core]\nsshCommand = \\\nevil\n", "core.sshcommand"),
            (
                "[filter \"x]\"]\nclean = c\nsmudge=s",
                "filter.clean filter.smudge",
            ),
            ("[filter.x]\nprocess = c\n", "filter.process"),
            ("[diff \"a\"]\ntextconv = t\n", "diff.textconv"),
            ("[merge \"a\"]\ndriver = t\n", "merge.driver"),
            ("[alias]\nst = !evil\nco = checkout\n", "alias.st"),
            ("[alias]\nst = \"!evil\"\n", "alias.st"),
            ("[include]\npath = ../x\n", "include.path"),
            ("[includeIf \"gitdir:/\"]\npath = ../x\n", "includeif.path"),
            ("[pager]\nlog = less\nstatus = false\n", "pager.log"),
            (
                "[gpg \"ssh\"]\ndefaultKeyCommand = x\n",
                "gpg.defaultkeycommand",
            ),
            ("[credential]\nhelper = !x\n", "credential.helper"),
            (
                "[submodule \"a\"]\npath = a\nupdate = !x\n",
                "submodule.update",
            ),
            ("[submodule \"a\"]\nurl = u\nactive = true\n", ""),
            ("[remote \"o\"]\nurl = ext::sh -c x\n", "remote.url"),
            (
                "[remote \"o\"]\nurl = https://h/x\nfetch = +refs/*:refs/*\n",
                "",
            ),
            ("[difftool \"x\"]\ncmd = y\n", "difftool.cmd"),
            ("[a][core]fsmonitor=p", "core.fsmonitor"),
            ("\u{feff}[core]\nfsmonitor=p", "core.fsmonitor"),
            ("# [core]\n; x\n[core]\n# fsmonitor = p\n", ""),
            ("[core]\neditor = v\u{1b}[2Ki\n", "core.editor"),
            // A comment goes to the end of its line, and a backslash behind a backslash is one.
            (
                "[user]\nname = x # \\\n[core] fsmonitor = p\n",
                "core.fsmonitor",
            ),
            (
                "[user]\nname = x ; \\\n[core] fsmonitor = p\n",
                "core.fsmonitor",
            ),
            (
                "[user]\nname = x\\\\\n[core] fsmonitor = p\n",
                "core.fsmonitor",
            ),
            (
                "[core]\nx = y \\\n[user]\nhooksPath = p\n",
                "core.hookspath user.hookspath",
            ),
            (
                "[submodule]\nx = y \\\n[include]\npath = p\n",
                "include.path",
            ),
            ("[alias]\nx = y \\\n[user]\nst = !p\n", "alias.st"),
            ("[core \"a]\nb\"]\nfsmonitor = p\n", "core.fsmonitor"),
            // The name of a directory or file, whatever it is called.
            ("[core]\nhooksPath = 1\n", "core.hookspath"),
            ("[include]\npath = on\n", "include.path"),
            ("[init]\ntemplateDir = yes\n", "init.templatedir"),
            ("[core]\neditor =\n[pager]\nlog = no\n", ""),
            ("[imap]\ntunnel = x\n", "imap.tunnel"),
            ("[gc]\nrecentObjectsHook = x\n", "gc.recentobjectshook"),
        ] {
            let found: Vec<String> = programs(text.as_bytes()).into_iter().collect();
            assert_eq!(found.join(" "), wanted, "{text:?}");
        }
    }
}
