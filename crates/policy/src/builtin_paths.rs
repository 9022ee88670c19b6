//! The paths Belljar knows by itself, as data with a reason each.

/// What a program needs to start: its interpreter, libraries, certificates and name lookups. The
/// only part of the host that `mode: none` shows.
pub(crate) const RUNTIME: &[&str] = &[
    "/usr",                 // programs and libraries
    "/bin",                 // the same, on hosts where it is no link
    "/sbin",                // the same
    "/lib",                 // the same
    "/lib32",               // the same
    "/lib64",               // the loader's usual place
    "/libx32",              // the same
    "/etc/alternatives",    // links that programs in /usr/bin go through
    "/etc/ld.so.cache",     // where libraries are
    "/etc/ld.so.conf",      // the same
    "/etc/ld.so.conf.d",    // the same
    "/etc/ssl/certs",       // public certificates
    "/etc/ssl/openssl.cnf", // OpenSSL stops without it
    "/etc/ca-certificates", // public certificates
    "/etc/passwd",          // user names
    "/etc/group",           // group names
    "/etc/nsswitch.conf",   // how names are looked up
    "/etc/localtime",       // time zone
    "/etc/hosts",           // localhost
    "/etc/mime.types",      // file types
];

/// Scratch directories: each box has its own.
pub(crate) const PRIVATE: &[&str] = &["/tmp", "/var/tmp", "/dev/shm"];

/// Scratch directories below a home that may be read: programs insist on writing there, and what the
/// host keeps in them (browser caches, histories) is nobody's business.
pub(crate) const PRIVATE_HOME: &[&str] = &[".cache", ".local/state"];

/// Trees every box has its own of, and which are therefore no entries of the table.
pub(crate) const OWN_TREES: &[&str] = &["/proc", "/dev"];

/// Hidden parts of the system.
pub(crate) const HIDDEN_SYSTEM: &[&str] = &[
    "/sys",                                   // the kernel's settings
    "/run",                                   // sockets of Docker, D-Bus, systemd
    "/boot",                                  // kernels
    "/lost+found",                            // pieces of anybody's files
    "/root",                                  // the administrator's home
    "/etc/shadow",                            // password hashes
    "/etc/gshadow",                           // the same, of groups
    "/etc/shadow-",                           // their backups
    "/etc/gshadow-",                          // the same
    "/etc/sudoers",                           // who may become root
    "/etc/sudoers.d",                         // the same
    "/etc/ssl/private",                       // private keys of services
    "/etc/krb5.keytab",                       // the host's Kerberos key
    "/etc/kubernetes",                        // cluster credentials
    "/etc/rancher",                           // the same
    "/etc/wireguard",                         // tunnel keys
    "/etc/openvpn",                           // the same
    "/etc/NetworkManager/system-connections", // wireless passwords
    "/var/lib/docker",                        // other people's containers
    "/var/lib/containerd",                    // the same
    "/var/lib/containers",                    // the same
    "/var/lib/kubelet",                       // the same
    "/var/lib/belljar",                       // Belljar's own state
    "/var/spool/cron",                        // jobs that run outside the box
    "/var/spool/mail",                        // mail
    "/var/mail",                              // the same
    "/var/backups",                           // copies of the above
];

/// Hidden below the home directory: what would let an agent act as its user elsewhere, or read what
/// the user did.
pub(crate) const HIDDEN_HOME: &[&str] = &[
    // Keys and logins.
    ".ssh",
    ".gnupg",
    ".pki",
    ".netrc",
    "_netrc",
    ".authinfo",
    ".authinfo.gpg",
    ".git-credentials",
    ".config/git/credentials",
    ".config/gh",
    ".config/glab-cli",
    ".config/hub",
    ".config/op",
    ".config/Bitwarden",
    ".config/Bitwarden CLI",
    ".config/1Password",
    ".config/keepassxc",
    ".config/sops",
    ".config/age",
    ".password-store",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".kde/share/apps/kwallet",
    ".vault-token",
    ".step",
    ".krb5",
    ".circleci",
    ".jira.d",
    ".subversion/auth",
    ".travis",
    // Clouds and clusters.
    ".aws",
    ".azure",
    ".config/gcloud",
    ".config/doctl",
    ".config/rclone",
    ".config/hcloud",
    ".config/scw",
    ".config/linode-cli",
    ".config/flyctl",
    ".fly",
    ".config/netlify",
    ".config/vercel",
    ".local/share/com.vercel.cli",
    ".config/heroku",
    ".config/configstore",
    ".oci",
    ".aliyun",
    ".bluemix",
    ".kube",
    ".docker",
    ".dockercfg",
    ".config/containers",
    ".minikube",
    ".helm",
    ".config/helm",
    ".terraform.d",
    ".terraformrc",
    ".pulumi",
    ".boto",
    ".s3cfg",
    ".mc",
    ".snowsql",
    ".databrickscfg",
    ".kaggle",
    ".huggingface",
    ".wandb",
    ".awsvault",
    ".cloudflared",
    ".config/argocd",
    ".config/ngrok",
    ".config/railway",
    ".config/stripe",
    ".config/supabase",
    ".config/.wrangler",
    ".doppler",
    ".granted",
    ".infisical",
    ".ngrok2",
    ".railway",
    ".saml2aws",
    ".sentryclirc",
    ".supabase",
    ".talos",
    ".wrangler",
    // Package registries: their settings hold tokens.
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".config/yarn",
    ".pypirc",
    ".config/pip",
    ".pip",
    ".config/pypoetry",
    ".condarc",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".local/share/gem/credentials",
    ".bundle/config",
    ".composer/auth.json",
    ".config/composer/auth.json",
    ".m2/settings.xml",
    ".m2/settings-security.xml",
    ".gradle/gradle.properties",
    ".nuget/NuGet",
    ".config/NuGet",
    ".hex",
    // Databases.
    ".pgpass",
    ".my.cnf",
    ".mylogin.cnf",
    ".mongorc.js",
    ".dbshell",
    ".rediscli_history",
    ".config/DBeaver",
    ".local/share/DBeaverData",
    // Browsers, mail, chat.
    ".mozilla",
    ".thunderbird",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
    ".config/vivaldi",
    ".config/opera",
    ".config/Slack",
    ".config/discord",
    ".config/Signal",
    ".config/evolution",
    ".local/share/evolution",
    ".mutt",
    ".msmtprc",
    ".mbsyncrc",
    ".offlineimaprc",
    ".bitcoin",
    ".ethereum",
    ".electrum",
    // Histories: commands hold passwords.
    ".bash_history",
    ".zsh_history",
    ".zhistory",
    ".local/share/fish",
    ".config/fish/fish_history",
    ".python_history",
    ".node_repl_history",
    ".irb_history",
    ".psql_history",
    ".mysql_history",
    ".sqlite_history",
    ".lesshst",
    ".viminfo",
    ".wget-hsts",
    // Agents' own files in the home itself (their directories: see `agent_paths`), and editors: logins, and the memory
    // of other work.
    ".aider.conf.yml",
    ".claude.json",
    ".claude.json.backup",
    ".config/Code",
    ".config/JetBrains",
    ".config/zed",
    ".modal.toml",
    ".ollama/id_ed25519",
    ".vscode",
    ".vscode-oss",
    ".vscode-server",
    // The desktop session: its sockets, cookies and caches start programs or hold documents.
    ".Xauthority",
    ".ICEauthority",
    ".dbus",
    ".local/share/recently-used.xbel",
    ".local/share/Trash",
    ".wine",
    // Belljar's own state.
    ".local/share/belljar",
    ".config/belljar",
];

/// Files hidden by name wherever they are, but for the working directory: what a project keeps for
/// itself its own agent may need, what other projects keep is not its business.
pub(crate) const HIDDEN_NAMES: &[&str] =
    &[".env", ".env.local", ".env.production", ".env.development"];

/// Never written in a writable working directory, because something outside the box acts on them.
pub(crate) const PROTECTED_WORK: &[&str] = &[
    // Git runs or obeys these on the user's next command.
    ".git/hooks",
    ".git/config",
    ".husky",
    ".pre-commit-config.yaml",
    // CI runs these with the project's secrets.
    ".github",
    ".gitlab-ci.yml",
    ".circleci",
    // Editors, shells and agents run or obey these when the directory is opened.
    ".vscode",
    ".idea",
    ".cursor",
    ".claude",
    ".codex",
    ".gemini",
    ".mcp.json",
    ".envrc",
];

/// Never written in a writable home directory, working directory or not: the next login runs them.
pub(crate) const PROTECTED_HOME: &[&str] = &[
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".profile",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
    ".inputrc",
    ".gitconfig",
    ".config/git",
    ".config/fish",
    ".config/autostart",
    ".config/systemd",
    ".config/environment.d",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn lists_hold_each_path_once_in_normal_form() {
        for list in [
            RUNTIME,
            PRIVATE,
            HIDDEN_SYSTEM,
            HIDDEN_HOME,
            PROTECTED_WORK,
            PROTECTED_HOME,
        ] {
            let mut seen = BTreeSet::new();
            for path in list {
                assert!(seen.insert(path), "{path} appears twice");
                assert!(!path.ends_with('/') && !path.contains("//"), "{path}");
            }
        }
    }
}
