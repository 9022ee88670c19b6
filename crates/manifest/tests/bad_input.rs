//! Documents that are wrong: the exact words a user sees, and no panic for anything at all.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write;

use belljar_manifest::{Colour, ManifestError, parse_capability};
use proptest::prelude::*;

const YAML: &str = "capability.yaml";
const TOML: &str = "sandbox.toml";

#[track_caller]
fn refused(file: &str, bytes: &[u8]) -> ManifestError {
    match parse_capability(file, bytes) {
        Err(error) => error,
        Ok(_) => panic!(
            "accepted: {}",
            String::from_utf8_lossy(&bytes[..bytes.len().min(200)])
        ),
    }
}

/// One line for the error, one for its hint, under the document that caused it.
fn report(cases: &[(&str, &str, Vec<u8>)]) -> String {
    let mut report = String::new();
    for (case, file, bytes) in cases {
        let error = refused(file, bytes);
        // Rendering slices the document by the error's span, so it is tried on every case.
        let rendered = error.render(Colour::Plain);
        assert!(rendered.contains(&error.message), "{rendered}");
        writeln!(report, "# {case}\n{error}").unwrap();
        if let Some(hint) = &error.hint {
            writeln!(report, "  hint: {hint}").unwrap();
        }
    }
    report
}

fn text(case: &'static str, text: &str) -> (&'static str, &'static str, Vec<u8>) {
    (case, YAML, text.as_bytes().to_vec())
}

fn toml(case: &'static str, text: &str) -> (&'static str, &'static str, Vec<u8>) {
    (case, TOML, text.as_bytes().to_vec())
}

#[test]
fn files_that_are_no_document() {
    let bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n";
    let many = format!("env_allowlist: [{}]", "x,".repeat(10_001));
    let cases = [
        text("empty", ""),
        text("only a comment", "# nothing\n"),
        text("only a marker", "---\n"),
        text("larger than the bound", &"#".repeat(10 * 1024 * 1024)),
        ("invalid UTF-8", YAML, b"extends: \xff\xfe".to_vec()),
        text("NUL", "extends: strict\0\nfoo: bar"),
        text("escape sequence", "extends: \u{1b}[31mstrict"),
        text("reversed text", "extends: strict # \u{202e}tcirts"),
        text(
            "two documents",
            "extends: strict\n---\nextends: permissive\n",
        ),
        text("aliases", "extends: *x"),
        text("bomb", bomb),
        text("anchor", "filesystem_config: &fs {mode: none}"),
        text("tag", "sandbox_tier: !!str seccomp"),
        text("own tag", "resource_limits: !limits {}"),
        text("merge key", "filesystem_config: {<<: {mode: none}}"),
        text("key that is a list", "? [a, b]\n: c"),
        text("duplicate key", "extends: strict\nextends: permissive"),
        text(
            "duplicate key below",
            "resource_limits:\n  max_tokens: 1\n  'max_tokens': 2",
        ),
        text("tab indentation", "resource_limits:\n\tmax_tokens: 1"),
        text("unclosed", "permissions: [read_env"),
        text(
            "deep",
            &format!("extends: {}{}", "[".repeat(40), "]".repeat(40)),
        ),
        text("very deep", &"[".repeat(100_000)),
        text("deep blocks", &"- ".repeat(2_000)),
        text("many", &many),
        text("top level list", "- extends: strict"),
        text("top level text", "strict"),
        toml("empty TOML", "# nothing"),
        toml("not TOML", "[sandbox\nmode = 1"),
        toml(
            "duplicate TOML key",
            "[sandbox]\nmode = 'Strict'\nmode = 'Strict'",
        ),
        toml(
            "deep TOML",
            &format!("[sandbox]\nmode = {}{}", "[".repeat(40), "]".repeat(40)),
        ),
        toml("very deep TOML", &format!("a = {}", "[".repeat(100_000))),
    ];
    insta::assert_snapshot!(report(&cases));
}

#[test]
fn keys_and_types() {
    let cases = [
        text("unknown key", "resource_limits:\n    max_memory: 5"),
        text("unknown key at the top", "extend: strict"),
        text("unlike any key", "zebra: 1"),
        text("homoglyph", "resource_limits: {m\u{430}x_memory_mb: 5}"),
        text("zero width", "extends\u{200b}: strict"),
        text(
            "after wide text",
            "# \u{1f980}\n{env_allowlist: [\"\u{e9}\"], tier: x}",
        ),
        text(
            "CRLF",
            "extends: strict\r\nresource_limits:\r\n  max_token: 5\r\n",
        ),
        text("BOM", "\u{feff}extend: strict"),
        text(
            "other format's key",
            "filesystem_config: {write_paths: [x]}",
        ),
        text("long key", &format!("{}: 1", "k".repeat(500))),
        text("one level too high", "max_memory_mb: 5"),
        text("terminal escape", "env_allowlist: [\"a\\e[2J\"]"),
        text(
            "text for a number",
            "resource_limits: {max_memory_mb: lots}",
        ),
        text("quoted number", "resource_limits: {max_memory_mb: '512'}"),
        text("unit", "resource_limits: {max_memory_mb: 512MB}"),
        text("fraction", "resource_limits: {max_tokens: 1.5}"),
        text("negative", "resource_limits: {max_memory_mb: -5}"),
        text("zero", "resource_limits: {max_cpu_seconds: 0}"),
        text("NaN", "resource_limits: {max_cpu_seconds: .nan}"),
        text(
            "NaN for a whole number",
            "resource_limits: {max_tokens: .NaN}",
        ),
        text("infinite", "resource_limits: {max_cost_usd: .inf}"),
        text("minus infinity", "resource_limits: {max_tokens: -.inf}"),
        text(
            "huge",
            "resource_limits: {max_memory_mb: 99999999999999999999999999999999999999999999}",
        ),
        text(
            "beyond a float",
            "resource_limits: {max_cpu_seconds: 1e400}",
        ),
        text(
            "a million years",
            "resource_limits: {max_wall_seconds: 3.2e13}",
        ),
        text(
            "word for a number",
            "resource_limits: {max_cpu_seconds: infinity}",
        ),
        text("yes", "degraded: yes"),
        text("list for a mapping", "resource_limits: []"),
        text("null for a mapping", "resource_limits:"),
        text("text for a list", "permissions: read_env"),
        text("number in a list of names", "env_allowlist: [1]"),
        text("null in a list", "env_allowlist: [~]"),
        text("empty name", "env_allowlist: ['']"),
        text(
            "long name",
            &format!("env_allowlist: ['{}']", "x".repeat(5_000)),
        ),
        text("unknown tier", "sandbox_tier: gviser"),
        text("case of a word", "extends: Strict"),
        text("unknown permission", "permissions: [root]"),
        text("missing key", "network_egress_rules:\n  - ports: [443]"),
        text(
            "port",
            "network_egress_rules: [{domain: x.com, ports: [70000]}]",
        ),
        toml(
            "unknown TOML key",
            "[sandbox.filesystem]\nwritable_paths = ['x']",
        ),
        toml("unknown TOML table", "[sandbx]"),
        toml(
            "earliest TOML error",
            "[sandbox.resources]\nzzz = 1\naaa = 2",
        ),
        toml("date", "[sandbox]\nmode = 2020-01-01"),
        toml("TOML NaN", "[sandbox.resources]\nmax_cpu_percent = nan"),
        toml(
            "TOML infinity",
            "[sandbox.resources]\ntimeout_seconds = inf",
        ),
        toml("TOML 1e400", "[sandbox.resources]\ntimeout_seconds = 1e400"),
        toml(
            "TOML huge",
            "[sandbox.resources]\nmax_memory_mb = 99999999999999999999999999999999999999999999",
        ),
        toml("array of tables", "[[sandbox]]"),
    ];
    insta::assert_snapshot!(report(&cases));
}

#[test]
fn meanings() {
    let cases = [
        text(
            "writable without read_write",
            "filesystem_config: {writable_paths: [out]}",
        ),
        text(
            "writable in none",
            "extends: strict\nfilesystem_config:\n  writable_paths:\n    - out",
        ),
        text("glob", "filesystem_config: {readable_paths: ['~/*.pem']}"),
        text(
            "name outside hidden_paths",
            "filesystem_config: {readable_paths: ['**/.env']}",
        ),
        text(
            "glob in hidden_paths",
            "filesystem_config: {hidden_paths: ['**/*.pem']}",
        ),
        text("climbing", "filesystem_config: {readable_paths: ['../x']}"),
        text(
            "NUL in a path",
            "filesystem_config: {readable_paths: [\"a\\0b\"]}",
        ),
        text(
            "variable",
            "filesystem_config: {readable_paths: ['$HOME/x']}",
        ),
        text(
            "other user",
            "filesystem_config: {readable_paths: ['~bob/x']}",
        ),
        text(
            "host proc",
            "filesystem_config: {readable_paths: [/proc/1]}",
        ),
        text(
            "host dev",
            "extends: moderate\nfilesystem_config: {writable_paths: [/dev]}",
        ),
        text("URL", "network_egress_rules: [{domain: 'https://x.com/a'}]"),
        text(
            "host and port",
            "network_egress_rules: [{domain: 'x.com:443'}]",
        ),
        text("everything", "network_egress_rules: [{domain: '*'}]"),
        text(
            "inner wildcard",
            "network_egress_rules: [{domain: 'a.*.com'}]",
        ),
        text("short address", "network_egress_rules: [{domain: '127.1'}]"),
        text(
            "international name",
            "network_egress_rules: [{domain: 'ex\u{e4}mple.com'}]",
        ),
        text("assignment", "env_allowlist: ['A=b']"),
        toml("no box", "[sandbox]\nenabled = false"),
        toml("full network", "[sandbox.network]\nmode = 'Full'"),
        toml(
            "domains without network",
            "[sandbox.network]\nmode = 'None'\nallowed_domains = ['x.com']",
        ),
        toml(
            "tool without server",
            "[sandbox.mcp]\nblocked_tools = ['execute']",
        ),
        toml(
            "path where none is read",
            "[sandbox.mcp]\nallowed_tools = ['fs:write:/work/*']",
        ),
        text(
            "tool that no server has",
            "mcp: {blocked_tools: ['shell:ex ec']}",
        ),
        text(
            "blocked path that is relative",
            "mcp: {blocked_tools: ['fs:write:etc/*']}",
        ),
        text(
            "server of two kinds",
            "mcp: {servers: {a: {url: 'http://x/', unix: /x}}}",
        ),
        text("server of no kind", "mcp: {servers: {a: {}}}"),
        text(
            "server's name",
            "mcp: {servers: {a__b: {url: 'http://x/'}}}",
        ),
        text(
            "capability of no program",
            "mcp: {servers: {a: {url: 'http://x/', capability: x.yaml}}}",
        ),
        text("empty command", "mcp: {servers: {a: {command: []}}}"),
        text(
            "no test",
            "mcp: {rules: [{tool: 'a:b', arguments: [{at: /x}]}]}",
        ),
        text(
            "two tests",
            "mcp: {rules: [{tool: 'a:b', arguments: [{at: /x, equals: 1, max_bytes: 3}]}]}",
        ),
        text(
            "no pointer",
            "mcp: {rules: [{tool: 'a:b', arguments: [{at: x, equals: 1}]}]}",
        ),
        text(
            "no expression",
            "mcp: {rules: [{tool: 'a:b', arguments: [{at: /x, regex: 'a)|(b'}]}]}",
        ),
        text(
            "relative glob",
            "mcp: {rules: [{tool: 'a:b', arguments: [{at: /x, glob: 'work/**'}]}]}",
        ),
        text(
            "rate of a denial",
            "mcp: {rules: [{tool: 'a:b', verdict: deny, rate_limit_per_minute: 3}]}",
        ),
        text(
            "unknown verdict",
            "mcp: {rules: [{tool: 'a:b', verdict: ask}]}",
        ),
    ];
    insta::assert_snapshot!(report(&cases));
}

#[test]
fn an_error_shows_its_line() {
    let text = "# comment\nresource_limits:\n  max_memory: 5\n  max_tokens: 1\n";
    let error = refused("conf/capability.yaml", text.as_bytes());
    assert_eq!((error.line, error.column), (3, 3));
    assert_eq!(&text[error.span.clone()], "max_memory");
    insta::assert_snapshot!(error.render(Colour::Plain));
    assert!(error.render(Colour::Styled).contains('\u{1b}'));
    assert!(!error.render(Colour::Plain).contains('\u{1b}'));
}

/// Pieces of real documents, so that random ones get past the first check.
fn pieces() -> impl Strategy<Value = String> {
    let words = [
        "extends",
        "strict",
        "resource_limits",
        "max_memory_mb",
        "filesystem_config",
        "mode",
        "none",
        "readable_paths",
        "[sandbox]",
        "[sandbox.network]",
        "sandbox",
        "=",
        ": ",
        ":",
        "\n",
        "\n  ",
        "- ",
        "[",
        "]",
        "{",
        "}",
        ",",
        "'",
        "\"",
        "1",
        "-1",
        "1e400",
        ".nan",
        "&a",
        "*a",
        "!!x",
        "|",
        ">",
        "\t",
        "\r\n",
        "#",
        "\u{e9}",
        "\u{1f980}",
        "~",
        "..",
        "/",
        "**/",
        "---",
        "...",
        "%YAML",
        "? ",
        "<<",
        "\"\"\"",
        "\\u0000",
        "\u{feff}",
        "\u{2028}",
    ];
    proptest::collection::vec(proptest::sample::select(words.to_vec()), 0..40)
        .prop_map(|words| words.concat())
}

fn never_panics(bytes: &[u8]) {
    for file in [YAML, TOML, "policy"] {
        if let Err(error) = parse_capability(file, bytes) {
            assert!(error.source_text.get(error.span.clone()).is_some());
            assert!(!error.render(Colour::Plain).is_empty());
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        never_panics(&bytes);
    }

    #[test]
    fn random_documents_never_panic(text in pieces()) {
        never_panics(text.as_bytes());
    }
}
