//! What filesystem rules come to, as a user would ask: may this path be read, may it be written?

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_policy::{
    Access, FileOp, Filesystem, FsMode, Ground, HomeMode, Origin, PathRule, PathTable, Places,
    Rule, Source, Workspace,
};

fn places() -> Places {
    Places {
        home: PathBuf::from("/home/ann"),
        work: PathBuf::from("/home/ann/project"),
        homes: vec![PathBuf::from("/home"), PathBuf::from("/root")],
    }
}

fn rules(source: Source, texts: &[&str]) -> Vec<Rule<PathRule>> {
    let origin = Origin {
        file: Arc::from("capability.yaml"),
        line: 7,
        column: 3,
        source,
    };
    let rule = |text: &&str| Rule::new(PathRule::parse_hidden(text).unwrap(), origin.clone());
    texts.iter().map(rule).collect()
}

fn filesystem(mode: FsMode) -> Filesystem {
    Filesystem {
        mode,
        workspace: Workspace::Direct,
        home: HomeMode::ReadOnly,
        writable: Vec::new(),
        readable: Vec::new(),
        hidden: Vec::new(),
        protected: Vec::new(),
    }
}

fn document(texts: &[&str]) -> Vec<Rule<PathRule>> {
    rules(Source::Document, texts)
}

#[track_caller]
fn check_at(places: &Places, filesystem: &Filesystem, path: &str, read: &str, write: &str) {
    let table = PathTable::resolve(filesystem, places);
    let code = |op| table.decide(Path::new(path), op).reason().code();
    assert_eq!(
        (code(FileOp::Read), code(FileOp::Write)),
        (read, write),
        "{path}"
    );
}

#[track_caller]
fn check(filesystem: &Filesystem, path: &str, read: &str, write: &str) {
    check_at(&places(), filesystem, path, read, write);
}

const R: &str = "allow_readable";
const W: &str = "allow_writable";
const PRIVATE: &str = "allow_private";
const HIDDEN: &str = "deny_hidden";
const RO: &str = "deny_read_only";
const PROTECTED: &str = "deny_protected";
const ABSENT: &str = "deny_not_visible";
const OTHER: &str = "deny_other_home";

#[test]
fn read_only_shows_the_tree_less_what_is_hidden() {
    let fs = filesystem(FsMode::ReadOnly);
    check(&fs, "/etc/hosts", R, RO);
    check(&fs, "/home/ann/notes.txt", R, RO);
    check(&fs, "/home/ann/project/src/a.rs", R, RO);
    check(&fs, "/home/ann/.ssh/id_ed25519", HIDDEN, HIDDEN);
    check(&fs, "/home/ann/.sshx", R, RO);
    check(&fs, "/home/bob/notes.txt", OTHER, OTHER);
    check(&fs, "/root/x", OTHER, OTHER);
    check(&fs, "/run/docker.sock", HIDDEN, HIDDEN);
    check(&fs, "/tmp/x", PRIVATE, PRIVATE);
    check(&fs, "/proc/1/environ", PRIVATE, PRIVATE);
    check(&fs, "/dev/null", PRIVATE, PRIVATE);
    check(&fs, "/mnt/data", R, RO);
    check(&fs, "/etc/../etc/shadow", HIDDEN, HIDDEN);
}

#[test]
fn read_write_opens_the_working_directory_and_protects_parts_of_it() {
    let fs = filesystem(FsMode::ReadWrite);
    check(&fs, "/home/ann/project", W, W);
    check(&fs, "/home/ann/project/src/a.rs", W, W);
    check(&fs, "/home/ann/project/.git/objects/aa", W, W);
    check(&fs, "/home/ann/project/.git/hooks/pre-commit", R, PROTECTED);
    check(
        &fs,
        "/home/ann/project/.github/workflows/ci.yml",
        R,
        PROTECTED,
    );
    check(&fs, "/home/ann/project/.env", W, W);
    check(&fs, "/home/ann/other/.env", HIDDEN, HIDDEN);
    check(&fs, "/home/ann/other/a", R, RO);
    check(&fs, "/etc/hosts", R, RO);
}

#[test]
fn writable_paths_replace_the_working_directory() {
    let fs = Filesystem {
        writable: document(&["/data", "out"]),
        ..filesystem(FsMode::ReadWrite)
    };
    check(&fs, "/data/x", W, W);
    check(&fs, "/home/ann/project/out/x", W, W);
    check(&fs, "/home/ann/project/src", R, RO);
    check(&fs, "/home/ann/project/.git/hooks/x", R, RO);
}

#[test]
fn the_whole_tree_writable_still_hides_and_protects() {
    let fs = Filesystem {
        writable: document(&["/"]),
        ..filesystem(FsMode::ReadWrite)
    };
    check(&fs, "/etc/hosts", W, W);
    check(&fs, "/home/ann/x", W, W);
    check(&fs, "/home/ann/.bashrc", R, PROTECTED);
    check(&fs, "/home/ann/project/a", W, W);
    check(&fs, "/home/ann/project/.git/config", R, PROTECTED);
    check(&fs, "/home/ann/.aws/credentials", HIDDEN, HIDDEN);
    check(&fs, "/home/bob/x", OTHER, OTHER);
    check(&fs, "/etc/shadow", HIDDEN, HIDDEN);
}

#[test]
fn none_shows_what_a_program_needs_to_start() {
    let fs = Filesystem {
        readable: rules(Source::Profile, &["."]),
        ..filesystem(FsMode::None)
    };
    check(&fs, "/usr/bin/python3", R, RO);
    check(&fs, "/etc/passwd", R, RO);
    check(&fs, "/etc/machine-id", ABSENT, ABSENT);
    check(&fs, "/srv/x", ABSENT, ABSENT);
    check(&fs, "/home/ann/x", PRIVATE, PRIVATE);
    check(&fs, "/home/ann/.ssh/id", PRIVATE, PRIVATE);
    check(&fs, "/home/ann/project/a", R, RO);
    let home = Filesystem {
        readable: document(&["~"]),
        ..fs.clone()
    };
    check(&home, "/home/ann/x", R, RO);
    check(&home, "/home/ann/.ssh/id", HIDDEN, HIDDEN);
    check(&fs, "/dev/null", PRIVATE, PRIVATE);
    let shut = Filesystem {
        hidden: document(&["/etc"]),
        ..fs
    };
    check(&shut, "/etc/passwd", HIDDEN, HIDDEN);
}

#[test]
fn the_users_own_rule_beats_what_is_shipped_at_the_same_path() {
    let fs = Filesystem {
        readable: document(&["~/.ssh", "~/other/.env"]),
        writable: document(&[".", ".git/hooks"]),
        ..filesystem(FsMode::ReadWrite)
    };
    check(&fs, "/home/ann/.ssh/id", R, RO);
    check(&fs, "/home/ann/other/.env", R, RO);
    check(&fs, "/home/ann/project/.git/hooks/x", W, W);
    check(&fs, "/home/ann/project/.git/config", R, PROTECTED);
    let wide = Filesystem {
        readable: document(&["~"]),
        ..filesystem(FsMode::ReadOnly)
    };
    check(&wide, "/home/ann/.ssh/id", HIDDEN, HIDDEN);
    let shipped = Filesystem {
        readable: rules(Source::Profile, &["~/.ssh"]),
        ..filesystem(FsMode::ReadOnly)
    };
    check(&shipped, "/home/ann/.ssh/id", HIDDEN, HIDDEN);
}

/// What learning proposes and what documentation shows: an agent's directory, writable.
#[test]
fn an_agents_directory_that_is_listed_keeps_its_keys_and_settings() {
    let fs = Filesystem {
        writable: document(&[
            "~/.claude",
            "~/.codex",
            "~/.config",
            "~/.local/share",
            "~/.pi",
        ]),
        ..filesystem(FsMode::ReadWrite)
    };
    let at = |below: &str| format!("/home/ann/{below}");
    for open in [
        ".claude/projects/x.jsonl",
        ".codex/sessions/x",
        ".config/io.datasette.llm/logs.db",
        ".local/share/crush/crush.db",
        ".pi/agent/sessions/x",
    ] {
        check(&fs, &at(open), W, W);
    }
    for hidden in [
        ".claude/.credentials.json",
        ".codex/auth.json",
        ".config/io.datasette.llm/keys.json",
        ".config/mini-swe-agent/.env",
        ".config/goose/secrets.yaml",
        ".config/gh/hosts.yml",
        ".config/github-copilot/apps.json",
        ".local/share/crush/crush.json",
        ".local/share/opencode/auth.json",
        ".pi/agent/auth.json",
        // Not listed, and so hidden as a whole.
        ".gemini/oauth_creds.json",
        ".qwen/settings.json",
    ] {
        check(&fs, &at(hidden), HIDDEN, HIDDEN);
    }
    for protected in [
        ".claude/settings.json",
        ".claude/settings.local.json",
        ".claude/CLAUDE.md",
        ".claude/commands/x.md",
        ".claude/hooks/x.sh",
        ".claude/plugins/x",
        ".codex/config.toml",
        ".codex/AGENTS.md",
        ".codex/prompts/x.md",
        ".pi/agent/extensions/x.ts",
    ] {
        check(&fs, &at(protected), R, PROTECTED);
    }
    let home = Filesystem {
        writable: document(&["~"]),
        ..filesystem(FsMode::ReadWrite)
    };
    check(&home, &at(".claude/settings.json"), HIDDEN, HIDDEN);
    check(
        &home,
        &at(".config/io.datasette.llm/keys.json"),
        HIDDEN,
        HIDDEN,
    );
    check(
        &home,
        &at(".config/io.datasette.llm/templates/x"),
        R,
        PROTECTED,
    );
    let meant = Filesystem {
        writable: document(&["~/.claude", "~/.claude/settings.json"]),
        readable: document(&["~/.claude/.credentials.json"]),
        ..filesystem(FsMode::ReadWrite)
    };
    check(&meant, &at(".claude/settings.json"), W, W);
    check(&meant, &at(".claude/.credentials.json"), R, RO);
    check(&meant, &at(".claude/settings.local.json"), R, PROTECTED);
}

#[test]
fn among_the_users_own_rules_the_longest_wins_then_the_strictest() {
    let fs = Filesystem {
        hidden: document(&["~", "/data", "/data/a/b", "**/secrets.yaml"]),
        readable: document(&["/data", "/data/a"]),
        ..filesystem(FsMode::ReadWrite)
    };
    check(&fs, "/data/x", HIDDEN, HIDDEN);
    check(&fs, "/data/a/x", R, RO);
    check(&fs, "/data/a/b/x", HIDDEN, HIDDEN);
    check(&fs, "/home/ann/notes.txt", HIDDEN, HIDDEN);
    check(&fs, "/home/ann/project/a", W, W);
    check(&fs, "/home/ann/project/secrets.yaml", HIDDEN, HIDDEN);
}

#[test]
fn a_protected_path_opens_nothing() {
    let fs = Filesystem {
        hidden: document(&["/secret"]),
        protected: document(&["/secret/x", "docs"]),
        ..filesystem(FsMode::ReadWrite)
    };
    check(&fs, "/secret/x", HIDDEN, HIDDEN);
    check(&fs, "/home/ann/project/docs/a", R, PROTECTED);
}

#[test]
fn starting_in_a_hidden_directory_does_not_open_it() {
    let at = Places {
        work: PathBuf::from("/home/ann/.ssh"),
        ..places()
    };
    let fs = Filesystem {
        writable: document(&["."]),
        ..filesystem(FsMode::ReadWrite)
    };
    check_at(&at, &fs, "/home/ann/.ssh/id", HIDDEN, HIDDEN);
    check_at(
        &at,
        &filesystem(FsMode::ReadWrite),
        "/home/ann/.ssh/id",
        HIDDEN,
        HIDDEN,
    );
    let below = Places {
        work: PathBuf::from("/home/ann/.aws/build"),
        ..places()
    };
    check_at(&below, &fs, "/home/ann/.aws/build/x", W, W);
    check_at(&below, &fs, "/home/ann/.aws/x", HIDDEN, HIDDEN);
    let scratch = Places {
        work: PathBuf::from("/tmp"),
        ..places()
    };
    check_at(&scratch, &fs, "/tmp/x", W, W);
}

#[test]
fn the_administrators_own_home_is_visible_to_them() {
    let root = Places {
        home: PathBuf::from("/root"),
        work: PathBuf::from("/root/project"),
        homes: places().homes,
    };
    let fs = filesystem(FsMode::ReadWrite);
    check_at(&root, &fs, "/root/notes", R, RO);
    check_at(&root, &fs, "/root/project/a", W, W);
    check_at(&root, &fs, "/root/.aws", HIDDEN, HIDDEN);
    check_at(&root, &fs, "/home/bob", OTHER, OTHER);
}

#[test]
fn a_denial_names_its_rule_and_the_line_to_add() {
    let fs = Filesystem {
        hidden: document(&["/data"]),
        ..filesystem(FsMode::ReadOnly)
    };
    let table = PathTable::resolve(&fs, &places());
    let denied = table.decide(Path::new("/data/x"), FileOp::Read);
    assert_eq!(denied.because().origin.to_string(), "capability.yaml:7");
    assert_eq!(
        denied.because().hint.as_deref(),
        Some(r#"add to capability.yaml: filesystem_config.readable_paths: ["/data/x"]"#)
    );
    let denied = table.decide(Path::new("/etc/hosts"), FileOp::Write);
    assert_eq!(denied.because().origin.to_string(), "built-in");
    assert_eq!(
        denied.because().hint.as_deref(),
        Some(
            r#"add to capability.yaml: filesystem_config: {mode: read_write, writable_paths: ["/etc/hosts"]}"#
        )
    );
}

#[test]
fn entries_come_parents_first_and_a_relative_path_is_nowhere() {
    let table = PathTable::resolve(&filesystem(FsMode::ReadWrite), &places());
    let mut seen: Vec<&Path> = Vec::new();
    for (path, _) in table.iter() {
        assert!(
            seen.iter().all(|earlier| !earlier.starts_with(path)),
            "{}",
            path.display()
        );
        seen.push(path);
    }
    assert_eq!(
        table
            .iter()
            .next()
            .map(|(path, entry)| (path, entry.access)),
        Some((Path::new("/"), Access::Read))
    );
    let relative = table.decide(Path::new("etc/hosts"), FileOp::Read);
    assert_eq!(relative.reason().code(), ABSENT);
}

/// An image's files are there where no rule says anything; of the host's, what the launch and the rules name.
#[test]
fn an_image_is_the_ground_in_every_mode() {
    for mode in [FsMode::None, FsMode::ReadOnly, FsMode::ReadWrite] {
        let mut filesystem = filesystem(mode);
        filesystem.readable = document(&["/srv/data"]);
        filesystem.hidden = document(&["/usr/share", "/srv/data/kept", "**/.env"]);
        let table = PathTable::resolve_on(Ground::Image, &filesystem, &places());
        let code = |path: &str, op| table.decide(Path::new(path), op).reason().code();
        for path in [
            "/",
            "/etc/shadow",
            "/usr/bin/sh",
            "/root/x",
            "/home/bob/x",
            "/opt/.env",
        ] {
            assert_eq!(code(path, FileOp::Read), "allow_image", "{path}");
            assert_eq!(code(path, FileOp::Write), "deny_read_only", "{path}");
        }
        let home = places().home;
        let home = home.join("x");
        assert_eq!(
            code(&home.to_string_lossy(), FileOp::Write),
            "allow_private"
        );
        assert_eq!(code("/tmp/x", FileOp::Write), "allow_private");
        assert_eq!(code("/usr/share/x", FileOp::Read), "deny_hidden");
        assert_eq!(code("/srv/data/x", FileOp::Read), "allow_readable");
        assert_eq!(code("/srv/data/kept", FileOp::Read), "deny_hidden");
        assert_eq!(code("/srv/data/.env", FileOp::Read), "deny_hidden");
        let work = places().work.join("x");
        let work = work.to_string_lossy();
        match mode {
            FsMode::None => assert_eq!(code(&work, FileOp::Read), "allow_private"),
            FsMode::ReadOnly => assert_eq!(code(&work, FileOp::Write), "deny_read_only"),
            FsMode::ReadWrite => assert_eq!(code(&work, FileOp::Write), "allow_writable"),
        }
    }
}
