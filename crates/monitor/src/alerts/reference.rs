//! What each alert means, for people: the alert reference is made of this, and so are the hints of alerts.

use std::fmt::Write as _;

use belljar_api::{AlertKind, Response, Severity};

use super::beacon::{DAILY, EVEN_PERCENT, GAPS, RATE, RATE_WINDOW, REGULAR};
use super::cause::{ESCALATIONS, INTRUSIONS, PART_OF_MEMORY, USUAL_MEMORY_MB};
use super::{KINDS, Nature, Over, is_about_an_agent, nature, over, rule_of};
use crate::settings::AlertSettings;
use crate::writer::{LEAST_BYTES, LEAST_PERCENT};

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
        AlertKind::ApprovalWaiting => {
            "answer it on the page of holds or with `belljar mcp answer`: it is refused when its time is over"
        }
        AlertKind::StorageFailure => {
            "make room on the disk of the state directory, or see that it can be written"
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
        AlertKind::NetworkAnomaly => format!(
            "The gateway refused it hosts in a burst; what one host is asked for within a second is one cause. At once: it asked for a metadata \
             service, which hands out credentials; or one host (names with the same last two parts are one) was refused to it {RATE} times within \
             {} minutes, {DAILY} times within a day, or {} times in a row evenly apart: gaps from {} s to {} h, each within {EVEN_PERCENT} % of their \
             mean. Hosts that may be reached and can't be for now are no beacons. An agent whose network is closed asks nobody: what finds no way \
             out is counted by its box's kernel as `any host`, in the tiers `native` and `container`.",
            RATE_WINDOW / 60_000,
            REGULAR + 1,
            GAPS.start() / 1000,
            GAPS.end() / 3_600_000
        ),
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
        AlertKind::ApprovalWaiting => "A call of a tool is held until an operator answers.".into(),
        AlertKind::StorageFailure => format!(
            "The disk of the state directory has less than {} MiB or {LEAST_PERCENT} % left, whichever is less, or the history can't be written.",
            LEAST_BYTES >> 20
        ),
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
        Over::Recovered(quiet) => format!(
            "by itself when the agent runs again and has done so for {} s, or when a person resolves it",
            quiet.as_secs()
        ),
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

What a supervisor raises, why, and what can be done about it by rule. `belljar monitor alerts` lists them; `… alerts ack ID`,
`… alerts resolve ID --reason …` and `… alerts resolve --agent NAME --kind KIND --reason …` (or `--all`) answer them. There is at most
one open alert of a kind about an agent, by its name: further causes are counted in it, those of its later runs too. One that ends by
itself says why. Alerts survive a restart. The values below hold where supervisor.toml says nothing else.

Releasing an agent resolves the alerts for which it was frozen or quarantined and arms their rules again: what it does next is
answered as if it were the first time. The same goes for its next run, and for a response that failed, after 30 seconds.
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
resolve_after_seconds = 600 # over so long after the last cause; 0: when a person says so
severity = \"critical\"       # info, warning or critical
respond = [\"notify\", \"freeze\"]
enabled = true

[supervisor.alerts.notify]
webhook = \"https://hooks.example.com/belljar\"
syslog = true               # /dev/log, or the path of another socket
command = [\"/usr/local/bin/page\", \"--team\", \"agents\"]
```

`resolve_after_seconds` is for alerts of what was tried or happened, not of what is so or is not. For `AgentCrashed` it is how long the agent
must have run again.

| response | what is done |
|---|---|
| `notify` | The webhook gets the alert as JSON by POST, syslog gets a line as in RFC 5424, the command gets the JSON on its standard input. |
| `freeze` | No process of the agent runs until the alert is resolved. While a rule keeps it frozen, the alert does not end by itself. |
| `quarantine` | The agent is frozen until a person releases it. An incident bundle is made. |
| `kill` | The agent is frozen, an incident bundle is made, and it is killed. |
| `kill_subtree` | The same, with everything below it. |

Every response is an event, and stands in the alert with why it failed, where it did.

## Silences

`belljar monitor silence --agent NAME --kind KIND --for 2h --reason …` (either matcher or both; `*` in a name stands for any letters)
has nobody told of such alerts until then. They are raised, counted and listed all the same, marked as silenced, and rules freeze,
quarantine and kill as ever. `belljar monitor silences` lists them, `… silence --end ID` ends one. An alert that is still open when its
silence ends is told then. Who silenced what, until when and why is in the ledger.

## What is kept

In supervisor.toml, `[supervisor.monitor]`. What is older goes, a little at a time.

| key | | where nothing is said |
|---|---|---|
| `seconds_kept_hours` | how long what agents used is kept by second | 24 |
| `minutes_kept_days` | how long it is kept by minute, and an agent is remembered | 30 |
| `events_kept_days` | how long events and resolved alerts are kept | 90 |
| `most_events` | how many events are kept at most | 1000000 |
| `incidents_kept` | how many incident bundles are kept | 100 |
| `most_incident_mb` | how large one may be, in MiB | 64 |

The ledger is never thinned out. A history file that is damaged is set aside as `monitor.db.damaged-…`, also while the supervisor runs,
and a new one is begun.

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
