//! What each alert means, for people: the alert reference is made of this, and so are the hints of alerts.

use std::fmt::Write as _;

use belljar_api::{AlertKind, Response, Severity};

use super::cause::{ESCALATIONS, INTRUSIONS, PART_OF_MEMORY, USUAL_MEMORY_MB};
use super::{KINDS, Nature, Over, is_about_an_agent, nature, over, rule_of};
use crate::settings::AlertSettings;

/// What to do about an alert.
pub(super) fn advice(kind: AlertKind) -> &'static str {
    match kind {
        AlertKind::HighResourceUsage => {
            "look at its graphs and processes; stop it, or raise its limits"
        }
        AlertKind::SuspiciousToolUsage => {
            "read what it tried; allow the tool in its capability if it needs it"
        }
        AlertKind::UnauthorizedAccess => {
            "quarantine it and read its incident bundle: nothing it needs does this"
        }
        AlertKind::NetworkAnomaly => "see which hosts it asked for; allow those it needs",
        AlertKind::PrivilegeEscalation => {
            "quarantine it and read its incident bundle: nothing it needs does this"
        }
        AlertKind::AgentCrashed => "read the end of its output",
        AlertKind::AgentQuarantined => "look at why, then release or kill it",
        AlertKind::BudgetExceeded => "stop it, or start it anew with a larger budget",
        AlertKind::ReplicationDenied => "see which rule of the contract said no",
        AlertKind::KillSwitchEngaged => {
            "everything was ended; reset the switch when the cause is dealt with"
        }
        AlertKind::LedgerFailure => {
            "grants are refused until the log can be written: see to its disk"
        }
    }
}

/// What raises it.
fn causes(kind: AlertKind) -> String {
    match kind {
        AlertKind::HighResourceUsage => format!(
            "An agent's CPU is at or above `max_cpu_percent` of what it may use (of one core where nothing limits it), or its memory at or above \
             `max_memory_mb`; where that is not set, at or above {PART_OF_MEMORY} % of its limit, or {USUAL_MEMORY_MB} MiB where it has none. \
             At once, without `for_seconds`: it met a limit of its box."
        ),
        AlertKind::SuspiciousToolUsage => "Tools it may not use are asked for again and again.".into(),
        AlertKind::UnauthorizedAccess => format!(
            "It made a system call that reaches for what is somebody else's, and the kernel refused it: {}.",
            list(INTRUSIONS)
        ),
        AlertKind::NetworkAnomaly => "The gateway refused it hosts in a burst. At once: it asked for a metadata service, which hands out credentials.".into(),
        AlertKind::PrivilegeEscalation => format!(
            "It made a system call that only serves to gain power, and the kernel refused it: {}.",
            list(ESCALATIONS)
        ),
        AlertKind::AgentCrashed => "It ended with an error or by a signal, ran out of memory, lost its keeper, never started, or crashes in a loop.".into(),
        AlertKind::AgentQuarantined => "It was frozen, by a person or a rule.".into(),
        AlertKind::BudgetExceeded => "Its tokens or its US dollars are spent.".into(),
        AlertKind::ReplicationDenied => "A replica it asked for was refused.".into(),
        AlertKind::KillSwitchEngaged => "The kill switch is engaged.".into(),
        AlertKind::LedgerFailure => "The log can't be written. No grant is given while that is so.".into(),
    }
}

fn list(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

/// The alert reference, as Markdown. `docs/alerts.md` is this text.
#[must_use]
pub fn reference() -> String {
    let mut text = String::from(HEAD);
    for kind in KINDS {
        section(&mut text, kind);
    }
    text.push_str(TAIL);
    text
}

fn section(text: &mut String, kind: AlertKind) {
    let rule = rule_of(kind);
    let severity = match rule.severity {
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    };
    let when = match (kind, nature(kind)) {
        (AlertKind::HighResourceUsage, _) => format!(
            "for {} s; `threshold` is `max_cpu_percent`, {}",
            rule.lasting.as_secs(),
            AlertSettings::default().max_cpu_percent
        ),
        (_, Nature::Level) => "as soon as it is so".into(),
        (_, Nature::Counted) if rule.threshold == 1 => "at the first".into(),
        (_, Nature::Counted) => format!("{} within {} s", rule.threshold, rule.window.as_secs()),
    };
    let ends = match over(&rule) {
        Over::ByAPerson => "when a person resolves it".into(),
        Over::AtOnce if is_about_an_agent(kind) => "by itself when that is no longer so or the agent has ended, or when a person resolves it".into(),
        Over::AtOnce => "by itself when that is no longer so, or when a person resolves it".into(),
        Over::After(quiet) => format!("by itself after {} s without a cause, or when a person resolves it", quiet.as_secs()),
    };
    let _ = write!(
        text,
        "\n## {kind:?}\n\n{}\n\n| | |\n|---|---|\n| severity | {severity} |\n| about | {} |\n| raised | {when} |\n| ends | {ends} |\n| what to do | {} |\n",
        causes(kind),
        if is_about_an_agent(kind) {
            "an agent"
        } else {
            "the supervisor"
        },
        advice(kind),
    );
}

const HEAD: &str = "\
# Alerts

<!-- Made from the code: BELLJAR_BLESS=1 cargo nextest run -p belljar-monitor --test reference -->

What a supervisor raises, why, and what can be done about it by rule. `belljar monitor alerts` lists them, `… alerts ack ID` and
`… alerts resolve ID --reason …` answer them. There is at most one open alert of a kind about an agent: further causes are counted in it.
Alerts survive a restart. The values below hold where supervisor.toml says nothing else.
";

const TAIL: &str = "
## Rules

In supervisor.toml. What a rule leaves out stays as it is above.

```toml
[supervisor.alerts]
max_cpu_percent = 80.0      # of what an agent may use, or of one core
max_memory_mb = 512

[[supervisor.alerts.rules]]
kind = \"NetworkAnomaly\"
threshold = 10              # so many causes
window_seconds = 60         # within this time
for_seconds = 0             # and so for this long
severity = \"critical\"       # info, warning or critical
respond = [\"notify\", \"freeze\"]
enabled = true

[supervisor.alerts.notify]
webhook = \"https://hooks.example.com/belljar\"
syslog = true               # /dev/log, or the path of another socket
command = [\"/usr/local/bin/page\", \"--team\", \"agents\"]
```

| response | what is done |
|---|---|
| `notify` | The webhook gets the alert as JSON by POST, syslog gets a line as in RFC 5424, the command gets the JSON on its standard input. |
| `freeze` | No process of the agent runs until the alert is resolved. While a rule keeps it frozen, the alert does not end by itself. |
| `quarantine` | The agent is frozen until a person releases it. An incident bundle is made. |
| `kill` | The agent is frozen, an incident bundle is made, and it is killed. |
| `kill_subtree` | The same, with everything below it. |

Every response is an event, and stands in the alert with why it failed, where it did.

## Incident bundles

One tar file in `incidents/`, readable by its owner alone: the policy, the manifest chain, the processes, open files, the end of the output and the
changes to the workspace as far as they were to be had, with the last events, samples and alerts. `MANIFEST.json` in it holds the SHA-256 of each. It is
made when an agent is quarantined or killed, by a rule or a person.
";

/// The word for a response, in settings and events.
pub(crate) fn word(response: Response) -> &'static str {
    match response {
        Response::Notify => "notify",
        Response::Freeze => "freeze",
        Response::Quarantine => "quarantine",
        Response::Kill => "kill",
        Response::KillSubtree => "kill_subtree",
    }
}
