//! Where a command's answer comes from. `BELLJAR_SUPERVISOR` names a supervisor elsewhere: then no command may answer about this
//! machine as if it were that one.

use std::ffi::OsString;

use clap::CommandFactory as _;

use super::Cli;

/// Whom a command is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The supervisor that is named, or that of the state directory.
    Supervisor,
    /// Files and programs that its arguments name, on this machine: nobody takes that for a supervisor's answer.
    Here,
    /// What this machine is, or its state directory holds. With a supervisor named it is refused, and this is what to do instead.
    StateDirectory(&'static str),
}

use Reach::{Here, StateDirectory, Supervisor};

const LOG: Reach = StateDirectory(
    "run it on the supervisor's own machine; from here the dashboard's page Ledger and GET /v1/ledger/entries show the entries",
);
const KEYS: Reach = StateDirectory("keys are kept on the supervisor's own machine: run it there");
const TOKENS: Reach =
    StateDirectory("tokens are kept on the supervisor's own machine: run it there");
const SECRETS: Reach =
    StateDirectory("secrets are kept on the supervisor's own machine: run it there");
const HOMES: Reach =
    StateDirectory("private homes are kept on the supervisor's own machine: run it there");
const PROPOSALS: Reach = StateDirectory(
    "proposals are judged where their project is: run it there; from here the dashboard's page Proposals shows them",
);
const CHANGES: Reach =
    StateDirectory("what boxes changed is kept on the supervisor's own machine: run it there");
const IMAGES: Reach = StateDirectory(
    "images are kept on the supervisor's own machine: run it there, or unset BELLJAR_SUPERVISOR for those of this one",
);
const PINS: Reach = StateDirectory(
    "what tools were seen to be is kept on the supervisor's own machine: run it there",
);
const HOST: Reach = StateDirectory(
    "it tries what its own machine can enforce: run it on the supervisor's, or unset BELLJAR_SUPERVISOR for this one",
);

/// Every command, by its words. A new one stands here or a test fails.
const TABLE: &[(&str, Reach)] = &[
    ("run", Here),
    ("learn", Here),
    ("validate", Here),
    ("inspect", Supervisor),
    (
        "ps",
        StateDirectory(
            "`belljar supervisor status` lists the agents of the supervisor that is named",
        ),
    ),
    ("home list", HOMES),
    ("home show", HOMES),
    ("home diff", HOMES),
    ("home export", HOMES),
    ("home reset", HOMES),
    ("check path", Here),
    ("check env", Here),
    ("check host", Here),
    ("check egress", Here),
    ("check tool", Here),
    ("replication tree", Supervisor),
    ("replication workers", Supervisor),
    ("replication quarantine", Supervisor),
    ("replication release", Supervisor),
    ("replication kill", Supervisor),
    ("replication revoke", Supervisor),
    ("replication bump-epoch", Supervisor),
    ("replication acknowledge-clock", Supervisor),
    ("replication kill-switch engage", Supervisor),
    ("replication kill-switch reset", Supervisor),
    ("replication kill-switch status", Supervisor),
    ("replication contract validate", Here),
    (
        "supervisor start",
        StateDirectory(
            "a supervisor is started on its own machine: unset BELLJAR_SUPERVISOR to start one here",
        ),
    ),
    ("supervisor status", Supervisor),
    ("supervisor stop", Supervisor),
    ("supervisor restart", Supervisor),
    ("supervisor kill", Supervisor),
    ("supervisor quarantine", Supervisor),
    ("supervisor release", Supervisor),
    ("supervisor logs", Supervisor),
    ("supervisor kill-all", Supervisor),
    ("supervisor shutdown", Supervisor),
    ("supervisor agent start", Supervisor),
    ("supervisor reload", Supervisor),
    ("supervisor validate", Here),
    ("sandbox", Supervisor),
    ("keeper", Here),
    ("monitor metrics", Supervisor),
    ("monitor events", Supervisor),
    ("monitor alerts", Supervisor),
    ("monitor alerts ack", Supervisor),
    ("monitor alerts resolve", Supervisor),
    ("monitor silence", Supervisor),
    ("monitor silences", Supervisor),
    ("monitor audit", LOG),
    ("monitor top", Supervisor),
    ("experiment run", Here),
    ("experiment resume", Here),
    ("experiment compare", Here),
    ("experiment report", Here),
    ("experiment list", Here),
    ("experiment show", Here),
    ("experiment gate", Here),
    ("experiment optimise", Here),
    ("evolve init", Here),
    ("evolve propose", PROPOSALS),
    ("evolve check", PROPOSALS),
    ("evolve inbox", PROPOSALS),
    ("evolve take", PROPOSALS),
    ("evolve list", PROPOSALS),
    ("evolve show", PROPOSALS),
    ("evolve review", PROPOSALS),
    ("evolve approve", PROPOSALS),
    ("evolve reject", PROPOSALS),
    ("evolve comment", PROPOSALS),
    ("evolve report", PROPOSALS),
    ("evolve deploy", PROPOSALS),
    ("evolve promote", PROPOSALS),
    ("evolve pause", PROPOSALS),
    ("evolve rollback", PROPOSALS),
    ("evolve status", PROPOSALS),
    ("evolve stats", PROPOSALS),
    ("reviewer add", PROPOSALS),
    ("reviewer list", PROPOSALS),
    ("reviewer enrol", PROPOSALS),
    ("reviewer revoke", PROPOSALS),
    ("mcp wrap", Here),
    ("mcp pin", PINS),
    ("mcp diff", PINS),
    ("mcp accept", PINS),
    ("mcp inspect", PINS),
    ("mcp holds", Supervisor),
    ("mcp answer", Supervisor),
    ("mcp serve", Here),
    ("mcp connect", Here),
    ("agent replicate", Here),
    ("agent heartbeat", Here),
    ("agent manifest", Here),
    ("agent usage", Here),
    ("agent replicas", Here),
    ("agent propose", Here),
    ("agent proposals", Here),
    ("agent shutdown", Here),
    ("agent subject", Here),
    ("profile list", Here),
    ("profile show", Here),
    ("doctor", HOST),
    ("schema", Here),
    ("audit verify", LOG),
    ("audit show", LOG),
    ("audit tail", LOG),
    ("audit prove", LOG),
    ("audit export", LOG),
    ("audit checkpoint", LOG),
    ("audit manifest", LOG),
    ("keys init", KEYS),
    ("keys list", KEYS),
    ("keys rotate", KEYS),
    ("keys retire", KEYS),
    ("keys compromise", KEYS),
    ("manifest show", Here),
    ("manifest verify", Here),
    ("secret set", SECRETS),
    ("secret list", SECRETS),
    ("secret rm", SECRETS),
    ("secret test", SECRETS),
    ("token create", TOKENS),
    ("token list", TOKENS),
    ("token revoke", TOKENS),
    ("image build", IMAGES),
    ("image list", IMAGES),
    ("image prune", IMAGES),
    ("diff", CHANGES),
    ("apply", CHANGES),
    ("discard", CHANGES),
    ("completions", Here),
    ("man", Here),
];

fn reach_of(path: &str) -> Option<Reach> {
    let known = TABLE.iter().find(|(known, _)| *known == path);
    known.map(|(_, reach)| *reach)
}

/// What to do instead of a command that would answer about this machine, where a supervisor is named. Its words come first.
pub(crate) fn refused(words: &[OsString]) -> Option<(String, &'static str)> {
    let matches = Cli::command().try_get_matches_from(words).ok()?;
    let (mut path, mut at) = (Vec::new(), &matches);
    while let Some((name, below)) = at.subcommand() {
        path.push(name);
        at = below;
    }
    let path = path.join(" ");
    // A proof in a file needs no log.
    let is_file = path == "audit verify" && at.value_source("proof").is_some();
    match reach_of(&path)? {
        StateDirectory(instead) if !is_file => Some((path, instead)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of every command that can be given, and what it must be given besides.
    fn commands(command: &clap::Command, path: &str, all: &mut Vec<String>) {
        let is_whole =
            !command.has_subcommands() || command.is_args_conflicts_with_subcommands_set();
        if is_whole && !path.is_empty() {
            all.push(path.to_owned());
        }
        for below in command
            .get_subcommands()
            .filter(|below| below.get_name() != "help")
        {
            let path = format!("{path} {}", below.get_name());
            commands(below, path.trim_start(), all);
        }
    }

    #[test]
    fn every_command_says_whom_it_is_about() {
        let mut all = Vec::new();
        commands(&Cli::command(), "", &mut all);
        let unsaid: Vec<&String> = all.iter().filter(|path| reach_of(path).is_none()).collect();
        assert!(
            unsaid.is_empty(),
            "cli/reach.rs does not say whom these are about: {unsaid:#?}"
        );
        let gone: Vec<_> = TABLE
            .iter()
            .filter(|(path, _)| !all.iter().any(|known| known == path))
            .collect();
        assert!(gone.is_empty(), "no such commands: {gone:#?}");
    }

    #[test]
    fn what_the_state_directory_holds_is_refused_and_nothing_else() {
        let refuses = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            refused(&words).map(|(path, _)| path)
        };
        assert_eq!(
            refuses("belljar audit verify --log fleet"),
            Some("audit verify".into())
        );
        assert_eq!(refuses("belljar audit verify --proof p --keyset k"), None);
        assert_eq!(refuses("belljar token list"), Some("token list".into()));
        for line in [
            "diff 1",
            "apply 1",
            "discard 1",
            "image list",
            "mcp diff",
            "doctor",
        ] {
            let found = refuses(&format!("belljar {line}"));
            assert_eq!(found, Some(line.trim_end_matches(" 1").to_owned()));
        }
        assert_eq!(refuses("belljar monitor alerts --all"), None);
        assert_eq!(refuses("belljar ps --nonsense"), None, "that is told first");
    }
}
