//! What agents keep in the home directory: logins and keys of their own, and settings that a later agent outside of any
//! box obeys. A policy that lists an agent's directory as writable opens neither: it has to name that very file.

use std::path::Path;

/// One agent's directory, or a file of it that lies in the home itself.
pub(crate) struct AgentDirectory {
    /// Below the home directory. Hidden as a whole unless a rule names it: it is the memory of other work.
    pub(crate) path: &'static str,
    /// Below it: keys and logins.
    pub(crate) credentials: &'static [&'static str],
    /// Below it: what is run or obeyed, by name.
    pub(crate) settings: &'static [&'static str],
}

const fn agent(
    path: &'static str,
    credentials: &'static [&'static str],
    settings: &'static [&'static str],
) -> AgentDirectory {
    AgentDirectory {
        path,
        credentials,
        settings,
    }
}

/// Sorted by path. An agent that is not here is hidden and protected by nothing of its own.
pub(crate) const AGENTS: &[AgentDirectory] = &[
    agent(".aider", &["oauth-keys.env"], &[]),
    agent(
        ".amazonq",
        &[],
        &["agents", "cli-agents", "mcp.json", "prompts", "rules"],
    ),
    agent(".anthropic", &[], &[]),
    agent(
        ".augment",
        &["session.json"],
        &["agents", "commands", "mcp.json", "rules", "settings.json"],
    ),
    agent(
        ".claude",
        &[".credentials.json", "backups", "ide"],
        &[
            "AGENTS.md",
            "CLAUDE.md",
            "agents",
            "chrome",
            "commands",
            "hooks",
            "keybindings.json",
            "local",
            "managed-settings.json",
            "output-styles",
            "plugins",
            "remote-settings.json",
            "rules",
            "scheduled_tasks.json",
            "settings.json",
            "settings.local.json",
            "skills",
            "statusline.sh",
            "workflows",
        ],
    ),
    agent(
        ".cline",
        &["data/secrets.json"],
        &["data/settings", "hooks", "rules", "skills", "workflows"],
    ),
    agent(
        ".codebuddy",
        &["local_storage"],
        &["agents", "commands", "mcp.json", "settings.json", "skills"],
    ),
    agent(
        ".codeium",
        &[],
        &[
            "windsurf/hooks.json",
            "windsurf/mcp_config.json",
            "windsurf/memories",
        ],
    ),
    agent(
        ".codex",
        &[".credentials.json", ".env", "auth.json"],
        &[
            "AGENTS.md",
            "AGENTS.override.md",
            "agents",
            "config.toml",
            "hooks",
            "hooks.json",
            "instructions.md",
            "managed_config.toml",
            "memories",
            "packages",
            "plugins",
            "policy",
            "prompts",
            "requirements.toml",
            "rules",
            "skills",
        ],
    ),
    agent(".config/Cursor", &[], &[]),
    agent(".config/Windsurf", &[], &[]),
    agent(
        ".config/amp",
        &[],
        &[
            "AGENT.md",
            "AGENTS.md",
            "commands",
            "plugins",
            "settings.json",
            "skills",
            "tools",
        ],
    ),
    agent(".config/anthropic", &[], &[]),
    agent(
        ".config/crush",
        &[],
        &["AGENTS.md", "CRUSH.md", "commands", "crush.json", "skills"],
    ),
    agent(".config/cursor", &["auth.json"], &["cli-config.json"]),
    agent(
        ".config/github-copilot",
        &["apps.json", "hosts.json"],
        &["intellij", "mcp.json"],
    ),
    agent(
        ".config/goose",
        &["secrets.yaml"],
        &[
            ".goosehints",
            "config.yaml",
            "custom_providers",
            "init-config.yaml",
            "memory",
            "permission.yaml",
            "permissions",
            "profiles.yaml",
            "prompts",
            "recipes",
            "skills",
        ],
    ),
    agent(
        ".config/io.datasette.llm",
        &["keys.json"],
        &[
            "aliases.json",
            "default_model.txt",
            "extra-openai-models.yaml",
            "model_options.json",
            "templates",
        ],
    ),
    agent(".config/mini-swe-agent", &[".env"], &[]),
    agent(".config/openai", &[], &[]),
    agent(
        ".config/opencode",
        &[],
        &[
            "AGENTS.md",
            "agent",
            "agents",
            "bun.lock",
            "command",
            "commands",
            "config.json",
            "mode",
            "modes",
            "node_modules",
            "opencode.json",
            "opencode.jsonc",
            "package.json",
            "plugin",
            "plugins",
            "skill",
            "skills",
            "tool",
            "tools",
            "tui.json",
        ],
    ),
    agent(
        ".continue",
        &[".env", "sharedConfig.json"],
        &[
            "agents",
            "config.json",
            "config.ts",
            "config.yaml",
            "mcpServers",
            "prompts",
            "rules",
        ],
    ),
    agent(
        ".copilot",
        &["config.json"],
        &[
            "agents",
            "copilot-instructions.md",
            "hooks",
            "instructions",
            "lsp-config.json",
            "mcp-config.json",
            "pkg",
            "plugins",
            "settings.json",
            "skills",
        ],
    ),
    agent(
        ".cursor",
        &["auth.json"],
        &[
            "agents",
            "argv.json",
            "cli-config.json",
            "commands",
            "extensions",
            "hooks",
            "hooks.json",
            "mcp.json",
            "permissions.json",
            "plugins",
            "rules",
            "sandbox.json",
            "skills",
        ],
    ),
    agent(
        ".factory",
        &["auth.encrypted", "auth.json"],
        &[
            "AGENTS.md",
            "commands",
            "droids",
            "hooks",
            "mcp.json",
            "settings.json",
            "skills",
        ],
    ),
    agent(
        ".gemini",
        &[
            ".env",
            "a2a-oauth-tokens.json",
            "gemini-credentials.json",
            "google_account_id",
            "google_accounts.json",
            "mcp-oauth-tokens-v2.json",
            "mcp-oauth-tokens.json",
            "oauth_creds.json",
        ],
        &[
            "AGENTS.md",
            "GEMINI.md",
            "agents",
            "antigravity/mcp_config.json",
            "commands",
            "extensions",
            "hooks",
            "keybindings.json",
            "policies",
            "settings.json",
            "skills",
            "system.md",
            "trustedFolders.json",
        ],
    ),
    agent(
        ".grok",
        &["auth.json", "user-settings.json"],
        &[
            "AGENTS.md",
            "GROK.md",
            "config.toml",
            "hooks",
            "settings.json",
            "skills",
        ],
    ),
    agent(
        ".iflow",
        &["iflow_accounts.json", "oauth_creds.json"],
        &["agents", "commands", "settings.json"],
    ),
    agent(
        ".kilocode",
        &["cli/config.json"],
        &["cli/global/settings", "rules", "skills"],
    ),
    agent(
        ".kimi",
        &["credentials"],
        &["config.json", "config.toml", "mcp.json", "skills"],
    ),
    agent(
        ".kiro",
        &[],
        &[
            "agents", "hooks", "prompts", "settings", "skills", "steering",
        ],
    ),
    agent(".local/share/amazon-q", &["data.sqlite3"], &[]),
    agent(".local/share/amp", &["secrets.json"], &[]),
    agent(".local/share/crush", &["crush.json"], &[]),
    agent(".local/share/goose", &[], &["config", "extensions"]),
    agent(".local/share/kiro-cli", &["data.sqlite3"], &[]),
    agent(
        ".local/share/opencode",
        &["account.json", "auth.json", "mcp-auth.json"],
        &["bin", "plugin"],
    ),
    agent(".openai", &[], &[]),
    agent(
        ".openhands",
        &[
            ".jwt_secret",
            ".keys",
            "agent_settings.json",
            "secrets.json",
            "settings.json",
        ],
        &[
            "cli_config.json",
            "config.toml",
            "hooks.json",
            "mcp.json",
            "microagents",
            "skills",
        ],
    ),
    agent(
        ".pi",
        &["agent/auth.json"],
        &[
            "agent/AGENTS.md",
            "agent/APPEND_SYSTEM.md",
            "agent/SYSTEM.md",
            "agent/bin",
            "agent/commands",
            "agent/extensions",
            "agent/git",
            "agent/hooks",
            "agent/keybindings.json",
            "agent/models.json",
            "agent/npm",
            "agent/prompts",
            "agent/settings.json",
            "agent/skills",
            "agent/tools",
        ],
    ),
    agent(
        ".qwen",
        &[".env", "mcp-oauth-tokens.json", "oauth_creds.json"],
        &[
            "AGENTS.md",
            "QWEN.md",
            "agents",
            "commands",
            "extensions",
            "hooks",
            "settings.json",
            "skills",
            "trustedFolders.json",
        ],
    ),
    agent(".roo", &[], &["commands", "mcp.json", "rules", "skills"]),
    agent(
        ".vibe",
        &[".env"],
        &[
            "AGENTS.md",
            "agents",
            "config.toml",
            "prompts",
            "skills",
            "tools",
        ],
    ),
];

/// Directories of agents that stay readable as a whole: programs lie in them, or nothing of other work does.
const OPEN: &[&str] = &[
    ".aider",
    ".config/io.datasette.llm",
    ".config/mini-swe-agent",
    ".local/share/crush",
    ".local/share/goose",
];

/// Whether the directory is hidden as long as no rule names it.
pub(crate) fn is_hidden_whole(directory: &AgentDirectory) -> bool {
    !OPEN.contains(&directory.path)
}

/// The directory of an agent, or the file of its that lies in the home itself, in which a path below the home is its own memory:
/// no login of its, and nothing that a later agent obeys.
#[must_use]
pub fn agent_directory(below_home: &Path) -> Option<&'static str> {
    // Directories may lie in one another: the nearest counts.
    let mut found = AGENTS.iter().rev();
    let agent = found.find(|agent| below_home.starts_with(agent.path))?;
    let rest = below_home.strip_prefix(agent.path).ok()?;
    let mut told = agent.credentials.iter().chain(agent.settings);
    // What is above one of them is about it, too.
    let is_told = told.any(|name| rest.starts_with(name) || Path::new(name).starts_with(rest));
    let is_directory = rest.as_os_str().is_empty();
    (is_directory || !is_told).then_some(agent.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_obeyed_or_secret_is_no_memory() {
        for (path, expected) in [
            (".claude/projects/x.jsonl", Some(".claude")),
            (".claude", Some(".claude")),
            (".claude/settings.json", None),
            (".claude/agents/x.md", None),
            (".codex/auth.json", None),
            (".pi/agent", None),
            (".pi/agent/sessions/x", Some(".pi")),
            (".ssh/id", None),
            ("notes", None),
        ] {
            assert_eq!(agent_directory(Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn the_table_is_sorted_and_holds_each_path_once() {
        let paths: Vec<_> = AGENTS.iter().map(|agent| agent.path).collect();
        assert!(paths.is_sorted_by(|a, b| a < b), "{paths:?}");
        for agent in AGENTS {
            for list in [agent.credentials, agent.settings] {
                assert!(list.is_sorted_by(|a, b| a < b), "{}: {list:?}", agent.path);
            }
            let both = agent
                .credentials
                .iter()
                .find(|path| agent.settings.contains(path));
            assert_eq!(both, None, "{}", agent.path);
        }
        assert!(OPEN.iter().all(|path| paths.contains(path)));
    }
}
