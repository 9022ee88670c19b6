//! What a path or a name says about what it is for.

use crate::path::TreePath;

/// Words that stand for what keeps an agent safe, in a path or a changed name.
const SECURITY: &[&str] = &[
    "auth",
    "authn",
    "authz",
    "authenticate",
    "authenticated",
    "authentication",
    "authorize",
    "authorized",
    "authorization",
    "oauth",
    "login",
    "password",
    "passwd",
    "credential",
    "credentials",
    "secret",
    "secrets",
    "crypto",
    "cryptography",
    "cipher",
    "encrypt",
    "decrypt",
    "hmac",
    "hashlib",
    "jwt",
    "ssl",
    "tls",
    "certificate",
    "permission",
    "permissions",
    "policy",
    "policies",
    "security",
    "sandbox",
    "sanitize",
    "privilege",
    "acl",
    "rbac",
    "guard",
    "guardrail",
    "guardrails",
    "safety",
    "audit",
    "supervisor",
    "evolve",
    "belljar",
    "killswitch",
    "approve",
    "approval",
];

/// Words that mean that only beside others: a tokeniser's tokens and a function's signature keep nobody safe.
const AMBIGUOUS: &[(&[&str], &[&str])] = &[
    (
        &["token", "tokens"],
        &[
            "access", "api", "bearer", "check", "csrf", "expired", "github", "id", "invalid",
            "issue", "mint", "refresh", "revoke", "revoked", "service", "session", "sign",
            "signed", "user", "valid", "validate", "verify", "xsrf",
        ],
    ),
    (
        &["signature", "signatures"],
        &[
            "check", "digital", "ed25519", "invalid", "key", "rsa", "sign", "signed", "valid",
            "validate", "verify",
        ],
    ),
];

/// Files, by name, that agents take for orders.
const ORDERS: &[&str] = &[
    "agent.md",
    "agents.md",
    "agents.override.md",
    "claude.md",
    "claude.local.md",
    "gemini.md",
    "qwen.md",
    "warp.md",
    "crush.md",
    "codex.md",
    "opencode.md",
    "skill.md",
    "skills.md",
    "soul.md",
    "identity.md",
    "memory.md",
    "conventions.md",
    "replit.md",
    "grok.md",
    "jules.md",
    "cline.md",
    "heartbeat.md",
    "airules.md",
    "llms.md",
    "llms-full.md",
    ".cursorrules",
    ".windsurfrules",
    ".clinerules",
    ".roorules",
    ".roomodes",
    ".rules",
    ".goosehints",
    ".aider.conf.yml",
    ".mcp.json",
    "mcp.json",
    "opencode.json",
];

/// Directories that hold such files, and what agents run of their own.
const ORDERS_IN: &[&str] = &[
    ".agent",
    ".agents",
    ".aiassistant",
    ".aider",
    ".amazonq",
    ".augment",
    ".claude",
    ".clinerules",
    ".codex",
    ".continue",
    ".crush",
    ".cursor",
    ".factory",
    ".firebender",
    ".gemini",
    ".goose",
    ".junie",
    ".kilocode",
    ".kiro",
    ".opencode",
    ".openhands",
    ".pi",
    ".qwen",
    ".roo",
    ".tabnine",
    ".trae",
    ".windsurf",
    ".zencoder",
    "microagents",
    "personas",
    "skills",
    "subagents",
];

/// The words of a name: `userAuth_token` is user, auth, token.
pub(super) fn words(text: &str) -> impl Iterator<Item = String> {
    let mut all = vec![String::new()];
    let mut was_lower = false;
    for c in text.chars() {
        if !c.is_alphanumeric() || (c.is_uppercase() && was_lower) {
            all.push(String::new());
        }
        if c.is_alphanumeric()
            && let Some(last) = all.last_mut()
        {
            last.extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase();
    }
    all.into_iter().filter(|word| !word.is_empty())
}

/// Whether a name is about what keeps an agent safe.
pub(super) fn is_about_safety(name: &str) -> bool {
    let all: Vec<String> = words(name).collect();
    let has = |known: &[&str]| all.iter().any(|word| known.contains(&word.as_str()));
    has(SECURITY)
        || AMBIGUOUS
            .iter()
            .any(|(words, beside)| has(words) && has(beside))
}

/// Whether a file tells an agent what to do: prompts, skills, instructions.
pub(super) fn is_instruction(path: &TreePath) -> bool {
    let folded = path.folded();
    let name = folded.rsplit('/').next().unwrap_or(&folded);
    let (stem, extension) = name.rsplit_once('.').unwrap_or((name, ""));
    let spoken: Vec<String> = words(path.as_str()).collect();
    let is_text = !matches!(
        extension,
        "py" | "pyi" | "rs" | "js" | "mjs" | "cjs" | "jsx" | "ts" | "mts" | "cts" | "tsx"
    );
    // Agents read them in whatever form of prose they are.
    let is_prose = matches!(
        extension,
        "" | "markdown" | "mdx" | "mkd" | "rst" | "adoc" | "txt" | "text"
    );
    let is_order = |known: &&str| known.strip_suffix(".md") == Some(stem);
    ORDERS.contains(&name)
        || is_prose && ORDERS.iter().any(is_order)
        || folded
            .split('/')
            .any(|part| ORDERS_IN.contains(&part) || part.starts_with(".aider"))
        || spoken
            .iter()
            .any(|word| matches!(word.as_str(), "prompt" | "prompts"))
        || matches!(extension, "prompt" | "prompty" | "mdc")
        || is_text
            && (words(stem).any(|word| {
                matches!(
                    word.as_str(),
                    "instruction" | "instructions" | "persona" | "chatmode" | "system" | "copilot"
                )
            }) || folded
                .split('/')
                .any(|part| matches!(part, "instructions" | "chatmodes" | "agents")))
}

/// Whether a file is for people to read, and where people look for that.
pub(super) fn is_documentation(path: &TreePath) -> bool {
    let folded = path.folded();
    let name = folded.rsplit('/').next().unwrap_or(&folded);
    let stem = name.split('.').next().unwrap_or(name);
    let is_known = stem.split(['-', '_']).next().is_some_and(|first| {
        matches!(
            first,
            "readme"
                | "changelog"
                | "changes"
                | "history"
                | "news"
                | "license"
                | "licence"
                | "copying"
                | "notice"
                | "authors"
                | "contributors"
                | "contributing"
                | "maintainers"
                | "security"
                | "code"
        )
    }) && (!stem.starts_with("code") || stem == "code_of_conduct");
    let is_below = folded
        .split_once('/')
        .is_some_and(|(top, _)| matches!(top, "docs" | "doc"));
    is_prose(path) && (is_known || is_below)
}

/// Whether it is prose by its name.
pub(super) fn is_prose(path: &TreePath) -> bool {
    let folded = path.folded();
    let name = folded.rsplit('/').next().unwrap_or(&folded);
    matches!(
        name.rsplit_once('.').map(|(_, extension)| extension),
        Some("md" | "rst" | "markdown" | "adoc")
    ) || matches!(name, "license" | "notice" | "authors" | "copying")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> TreePath {
        TreePath::new(name).unwrap()
    }

    #[test]
    fn what_tells_an_agent_what_to_do_is_no_documentation() {
        for name in [
            "AGENTS.md",
            "pkg/CLAUDE.md",
            "Gemini.MD",
            ".claude/skills/x/SKILL.md",
            ".claude/settings.json",
            ".cursor/rules/a.mdc",
            ".github/copilot-instructions.md",
            ".github/instructions/py.md",
            "prompts/system.md",
            "src/prompts/planner.j2",
            "docs/prompts/a.md",
            "planner.prompt",
            "plannerPrompt.yaml",
            "system.md",
            "agent/system_message.txt",
            "src/prompts.py",
            "skills/search/run.sh",
            "agents/reviewer.md",
            ".mcp.json",
            "CLAUDE.markdown",
            "docs/AGENTS.rst",
            "docs/Skill.txt",
            "llms.txt",
            ".trae/rules/project_rules.md",
            ".openhands/microagents/repo.md",
            "docs/subagents/tester.md",
        ] {
            assert!(is_instruction(&path(name)), "{name}");
        }
        for name in [
            "README.md",
            "src/system.py",
            "docs/usage.md",
            "ecosystem.md",
            "docs/memory_model.md",
            "src/memory.py",
            "prompting/x.py",
        ] {
            assert!(!is_instruction(&path(name)), "{name}");
        }
        for (name, is_so) in [
            ("README.md", true),
            ("pkg/readme.rst", true),
            ("CHANGELOG.md", true),
            ("docs/usage.md", true),
            ("LICENSE", true),
            ("CODE_OF_CONDUCT.md", true),
            ("LICENSE.py", false),
            ("notes.md", false),
            ("src/docs/rules.md", false),
            ("code_review.md", false),
            ("docs/conf.py", false),
        ] {
            assert_eq!(is_documentation(&path(name)), is_so, "{name}");
        }
    }

    #[test]
    fn tokens_are_a_tokenisers_unless_something_beside_them_says_otherwise() {
        for (name, is_so) in [
            ("tokens", false),
            ("max_tokens", false),
            ("countTokens", false),
            ("next_token", false),
            ("access_token", true),
            ("verifyToken", true),
            ("signature", false),
            ("verify_signature", true),
            ("check_password", true),
            ("auth/tokens.py", true),
            ("tokens.py", false),
        ] {
            assert_eq!(is_about_safety(name), is_so, "{name}");
        }
    }
}
