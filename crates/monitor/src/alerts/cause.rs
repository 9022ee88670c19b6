//! Which facts are causes of which alerts.

use belljar_api::{AgentView, AlertKind, EventKind, EventView, Severity, Shown};

use belljar_policy::names_metadata;

use crate::settings::AlertSettings;

/// Memory where an agent has no limit and nobody said anything, in mebibytes.
pub(crate) const USUAL_MEMORY_MB: u64 = 512;
/// The part of its limit that an agent's memory may reach, in percent.
pub(crate) const PART_OF_MEMORY: u64 = 90;

/// System calls that only serve to gain power: over namespaces, mounts, other processes, the kernel or the host.
pub(crate) const ESCALATIONS: &[&str] = &[
    // Namespaces and the view of the file system.
    "unshare",
    "setns",
    "clone",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "move_mount",
    "open_tree",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "mount_setattr",
    // Other processes, taken over.
    "ptrace",
    "process_vm_writev",
    "process_madvise",
    // The kernel.
    "bpf",
    "init_module",
    "finit_module",
    "delete_module",
    "kexec_load",
    "kexec_file_load",
    "userfaultfd",
    "perf_event_open",
    "io_uring_setup",
    "modify_ldt",
    "iopl",
    "ioperm",
    "uselib",
    "ustat",
    "lookup_dcookie",
    "personality",
    // Keys that are not namespaced.
    "keyctl",
    "add_key",
    "request_key",
    // Files that give their owner's rights to whoever runs them.
    "chmod",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "mknod",
    "mknodat",
    "open",
    "openat",
    "creat",
    // The host's own settings.
    "reboot",
    "swapon",
    "swapoff",
    "acct",
    "quotactl",
    "settimeofday",
    "clock_settime",
];

/// System calls that reach for what is somebody else's: a host's process, socket, file, terminal or log.
pub(crate) const INTRUSIONS: &[&str] = &[
    "process_vm_readv",
    "pidfd_getfd",
    "kcmp",
    "open_by_handle_at",
    "name_to_handle_at",
    "fanotify_init",
    "syslog",
    "ioctl",
    "vhangup",
    "socket",
    "socketpair",
    "connect",
    // Refused on the box's own pid 1 alone: nobody honest has business there.
    "prlimit64",
    "setpriority",
    "ioprio_set",
    "sched_setparam",
    "sched_setscheduler",
    "sched_setattr",
    "sched_setaffinity",
    "migrate_pages",
    "move_pages",
];

/// How an event bears on an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bearing {
    /// It counts as one cause.
    Counts,
    /// It is enough by itself.
    Suffices,
    /// From now on it is so.
    Begins,
    /// From now on it is not so.
    Ends,
}

/// What an event is a cause of, or the end of.
pub(crate) fn of_event(event: &EventView) -> Vec<(AlertKind, Bearing)> {
    use Bearing::{Begins, Counts, Ends, Suffices};
    let code = event.code.as_ref().map_or("", Shown::as_str);
    match event.kind {
        EventKind::EgressRefused => vec![of_refusal(place_of(event.text.as_str()), code)],
        EventKind::SystemCallRefused => of_system_call(event)
            .map(|kind| (kind, Counts))
            .into_iter()
            .collect(),
        // What the judge of calls found suspicious needs no second time.
        EventKind::ToolRefused if code.starts_with("tool_") || code == "message_malformed" => {
            vec![(AlertKind::SuspiciousToolUsage, Suffices)]
        }
        EventKind::ToolRefused => vec![(AlertKind::SuspiciousToolUsage, Counts)],
        EventKind::LimitMet => vec![(AlertKind::HighResourceUsage, Suffices)],
        EventKind::ReplicationDenied => vec![(AlertKind::ReplicationDenied, Counts)],
        EventKind::Quarantined => vec![(AlertKind::AgentQuarantined, Begins)],
        EventKind::Released => vec![(AlertKind::AgentQuarantined, Ends)],
        EventKind::BudgetExceeded => vec![(AlertKind::BudgetExceeded, Begins)],
        EventKind::KillSwitchEngaged => vec![(AlertKind::KillSwitchEngaged, Begins)],
        EventKind::KillSwitchReset => vec![(AlertKind::KillSwitchEngaged, Ends)],
        EventKind::Ledger if event.severity > Severity::Info => {
            vec![(AlertKind::LedgerFailure, Begins)]
        }
        EventKind::Ledger => vec![(AlertKind::LedgerFailure, Ends)],
        EventKind::Ended if code == "limit" => vec![(AlertKind::HighResourceUsage, Suffices)],
        EventKind::Ended if is_crash(code, event.severity) => {
            vec![(AlertKind::AgentCrashed, Counts)]
        }
        // One that starts anew after every end is no crash by that alone.
        EventKind::Restarting if is_crash(code, Severity::Info) => {
            vec![(AlertKind::AgentCrashed, Counts)]
        }
        EventKind::Started
        | EventKind::ToolHeld
        | EventKind::Ended
        | EventKind::Restarting
        | EventKind::Replicated
        | EventKind::Killed
        | EventKind::Alert
        | EventKind::Responded
        | EventKind::Daemon => Vec::new(),
    }
}

/// By the cause of the end; where that is not told, by how bad it was said to be: kills and limits are no more than a warning.
fn is_crash(code: &str, severity: Severity) -> bool {
    match code {
        "crashed" | "out_of_memory" | "keeper_lost" | "never_started" | "crash_loop" => true,
        "finished" | "stopped" | "killed" => false,
        _ => severity == Severity::Critical,
    }
}

/// What a refusal on the network is a cause of.
pub(crate) fn of_refusal(place: &str, code: &str) -> (AlertKind, Bearing) {
    let host = match place.rsplit_once(':') {
        // An address of the newer kind without a port is all colons.
        Some((host, _)) if !host.contains(':') || host.ends_with(']') => host,
        _ => place,
    };
    match code {
        "deny_llm_tokens" | "deny_llm_cost" => (AlertKind::BudgetExceeded, Bearing::Begins),
        _ if names_metadata(host) || names_metadata(place) => {
            (AlertKind::NetworkAnomaly, Bearing::Suffices)
        }
        _ => (AlertKind::NetworkAnomaly, Bearing::Counts),
    }
}

/// Whether a refusal is of what may not be reached, and not of what can't be for now.
pub(crate) fn is_of_policy(code: &str) -> bool {
    const PASSING: &[&str] = &[
        "deny_unreachable",
        "deny_unresolved",
        "deny_egress_rate",
        "deny_egress_connections",
        "deny_egress_bytes",
    ];
    !PASSING.contains(&code)
}

/// The host is the last word that looks like one: whatever else the text says, an agent's name among it, counts for nothing.
pub(crate) fn place_of(text: &str) -> &str {
    let mut words = text.split_whitespace();
    let host = words.rfind(|word| word.contains(['.', ':']));
    let last = || text.split_whitespace().next_back().unwrap_or_default();
    host.unwrap_or_else(last)
}

/// The call is the event's code; without one, the first word of its text that is a call.
fn of_system_call(event: &EventView) -> Option<AlertKind> {
    let text = event.text.as_str();
    // An agent without `spawn_subprocess` that starts a program is out of its policy, not after power.
    if text.contains("spawn_subprocess") {
        return None;
    }
    let kind = |word: &str| match word {
        _ if ESCALATIONS.contains(&word) => Some(AlertKind::PrivilegeEscalation),
        _ if INTRUSIONS.contains(&word) => Some(AlertKind::UnauthorizedAccess),
        _ => None,
    };
    match &event.code {
        Some(code) => kind(code.as_str()),
        None => text
            .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .find_map(kind),
    }
}

/// Why an agent uses too much, where it does.
pub(crate) fn of_usage(settings: &AlertSettings, agent: &AgentView) -> Option<String> {
    let of_cpu = agent.limits.cpu_percent.unwrap_or(100.0);
    let most_cpu = of_cpu * settings.max_cpu_percent / 100.0;
    if agent.usage.cpu_percent >= most_cpu {
        return Some(format!(
            "CPU at {:.0} % of a core; {most_cpu:.0} % is the most",
            agent.usage.cpu_percent
        ));
    }
    let by_limit = agent
        .limits
        .memory_bytes
        .map(|limit| limit / 100 * PART_OF_MEMORY);
    let by_setting = settings.max_memory_mb.map(|mb| mb.saturating_mul(1 << 20));
    let most_memory = match (by_limit, by_setting) {
        (Some(limit), Some(setting)) => limit.min(setting),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => USUAL_MEMORY_MB << 20,
    };
    (agent.usage.memory_bytes >= most_memory).then(|| {
        format!(
            "memory at {} MiB; {} MiB is the most",
            agent.usage.memory_bytes >> 20,
            most_memory >> 20
        )
    })
}

/// Which budget an agent has spent, where it has.
pub(crate) fn of_budget(agent: &AgentView) -> Option<String> {
    let (usage, limits) = (&agent.usage, &agent.limits);
    let spent = |used: u64, most: Option<u64>| most.is_some_and(|most| used >= most);
    if spent(usage.tokens, limits.tokens) {
        return Some(format!(
            "{} tokens used, which is all it was given",
            usage.tokens
        ));
    }
    if spent(usage.micro_usd, limits.micro_usd) {
        let usd = usage.micro_usd as f64 / 1e6;
        return Some(format!("{usd:.2} USD spent, which is all it was given"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls that the box's filter reports. Each must mean something to an operator.
    #[test]
    fn every_call_that_is_reported_is_a_cause() {
        let rules = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../sandbox/src/native/rules.rs"
        );
        let text = std::fs::read_to_string(rules).unwrap();
        let mut reported = 0;
        for rule in text.split("rule!(").skip(1) {
            let rule = rule.split("rule!(").next().unwrap_or_default();
            let Some(name) = rule.trim_start().strip_prefix("SYS_") else {
                continue;
            };
            let name = name.split(',').next().unwrap_or_default();
            if rule.contains("Report(") {
                reported += 1;
                let is_known = ESCALATIONS.contains(&name) || INTRUSIONS.contains(&name);
                assert!(is_known, "{name} raises no alert");
            }
        }
        assert!(
            reported > 40,
            "the search finds nothing any more: {reported}"
        );
        let both = ESCALATIONS.iter().find(|name| INTRUSIONS.contains(name));
        assert_eq!(both, None);
    }
}
