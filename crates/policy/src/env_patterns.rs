//! What a secret looks like, as data: names first, then values. Matching a name ignores case.

/// How a name is matched; the text is in upper case.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NamePattern {
    /// The whole name.
    Is(&'static str),
    /// The start of the name.
    Starts(&'static str),
    /// The end of the name.
    Ends(&'static str),
    /// Any part of the name.
    Has(&'static str),
}

use NamePattern::{Ends, Has, Is, Starts};

/// Variables every program may need and that say nothing secret. Only their values are examined.
pub(crate) const BASE: &[NamePattern] = &[
    Is("PATH"),      // where programs are
    Is("HOME"),      // where files go
    Is("LANG"),      // text encoding and language
    Starts("LC_"),   // the same, by category
    Is("LANGUAGE"),  // the same, as a preference list
    Is("TERM"),      // what the terminal can do
    Is("COLORTERM"), // the same, for colour
    Is("NO_COLOR"),  // the user's wish for plain output
    Is("TZ"),        // time zone
    Is("TMPDIR"),    // where scratch files go
    Is("SHELL"),     // programs start it for subcommands
    Is("USER"),      // who: tools print it
    Is("LOGNAME"),   // the same, by its POSIX name
];

/// Names that are never passed, listed or not.
pub(crate) const SENSITIVE: &[NamePattern] = &[
    Has("KEY"),           // API_KEY, SSH_KEY, KEYRING…
    Has("SECRET"),        // CLIENT_SECRET…
    Has("TOKEN"),         // ACCESS_TOKEN…
    Has("PASSW"),         // PASSWORD, PASSWD
    Has("PASSPHRASE"),    // of keys
    Has("CREDENTIAL"),    // GOOGLE_APPLICATION_CREDENTIALS…
    Ends("_PAT"),         // personal access tokens
    Has("PRIVATE"),       // private keys
    Has("COOKIE"),        // web sessions
    Has("SESSION"),       // session identifiers, sockets of the desktop session
    Starts("AWS_"),       // Amazon
    Starts("AZURE_"),     // Microsoft
    Starts("GCP_"),       // Google Cloud
    Starts("GOOGLE_"),    // the same
    Starts("CLOUDSDK_"),  // the same, its command line
    Starts("OPENAI_"),    // model vendors
    Starts("ANTHROPIC_"), // the same
    Starts("HF_"),        // Hugging Face
    Starts("GH_"),        // GitHub
    Starts("GITHUB_"),    // the same, in CI
    Starts("GITLAB_"),    // GitLab
    Starts("NPM_"),       // npm, whose settings hold tokens
    Is("DATABASE_URL"),   // holds the password as a rule
    Ends("_DSN"),         // connection strings
    Starts("SSH_"),       // the agent's socket
    Starts("GPG_"),       // the same for GnuPG
    Starts("VAULT_"),     // HashiCorp Vault
    Starts("DOCKER_"),    // a Docker socket is root
    Is("KUBECONFIG"),     // a cluster's credentials
    Starts("DBUS_"),      // the session bus starts programs outside the box
    Is("XAUTHORITY"),     // the display's cookie file
    Starts("LD_"),        // makes every program load code
    Is("BASH_ENV"),       // makes every bash run a file
    Is("ENV"),            // the same for sh
];

/// Of these, the names of what is a key itself.
pub(crate) const CREDENTIAL_NAMES: &[NamePattern] = &[
    Has("API_KEY"),
    Has("APIKEY"),
    Ends("_KEY"),
    Has("SECRET"),
    Has("TOKEN"),
    Has("PASSW"),
    Has("PASSPHRASE"),
    Has("CREDENTIAL"),
    Ends("_PAT"),
];

/// Names that make a runtime load code: `read_env` does not pass them, naming them does.
pub(crate) const ONLY_WHEN_LISTED: &[NamePattern] = &[
    Is("NODE_OPTIONS"),      // --require
    Is("PYTHONSTARTUP"),     // a file each interactive Python runs
    Is("PERL5OPT"),          // -M
    Is("RUBYOPT"),           // -r
    Is("JAVA_TOOL_OPTIONS"), // -javaagent
];

/// A token that starts so and goes on for at least `tail` characters is a secret.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenShape {
    pub(crate) prefix: &'static str,
    pub(crate) tail: usize,
}

const fn shape(prefix: &'static str, tail: usize) -> TokenShape {
    TokenShape { prefix, tail }
}

/// Prefixes vendors put on their secrets so that scanners find them.
pub(crate) const TOKENS: &[TokenShape] = &[
    shape("sk-", 16),             // OpenAI, Anthropic (sk-ant-), Stripe-like
    shape("sk_live_", 16),        // Stripe
    shape("rk_live_", 16),        // Stripe, restricted
    shape("ghp_", 16),            // GitHub personal
    shape("gho_", 16),            // GitHub OAuth
    shape("ghu_", 16),            // GitHub user-to-server
    shape("ghs_", 16),            // GitHub server-to-server
    shape("ghr_", 16),            // GitHub refresh
    shape("github_pat_", 16),     // GitHub fine-grained
    shape("glpat-", 16),          // GitLab
    shape("xoxb-", 10),           // Slack bot
    shape("xoxp-", 10),           // Slack user
    shape("xapp-", 10),           // Slack app
    shape("AKIA", 16),            // AWS access key
    shape("ASIA", 16),            // AWS temporary key
    shape("AIza", 30),            // Google API key
    shape("ya29.", 16),           // Google OAuth
    shape("npm_", 30),            // npm
    shape("pypi-", 16),           // PyPI
    shape("hf_", 16),             // Hugging Face
    shape("SG.", 16),             // SendGrid
    shape("dop_v1_", 16),         // DigitalOcean
    shape("sq0", 16),             // Square
    shape("hvs.", 16),            // HashiCorp Vault
    shape("AGE-SECRET-KEY-", 16), // age
];

impl NamePattern {
    /// Whether an upper-case name matches.
    pub(crate) fn matches(self, upper: &str) -> bool {
        match self {
            Is(text) => upper == text,
            Starts(text) => upper.starts_with(text),
            Ends(text) => upper.ends_with(text),
            Has(text) => upper.contains(text),
        }
    }
}
