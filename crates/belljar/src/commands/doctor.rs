//! `belljar doctor`: what this host can enforce, and what to do where it can't.

mod tiers;

use self::tiers::Effort;
use crate::cli::OutputFormat;
use crate::cli::doctor::Doctor;
use crate::exit::{self, Failure};
use crate::print;
use belljar_sandbox::Host;
use belljar_sandbox::cgroup::Cgroups;
use belljar_supervisor::StateDir;
use serde::Serialize;
use serde_json::json;

#[derive(Debug, Serialize)]
struct Finding {
    name: &'static str,
    ok: Standing,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Standing {
    /// Full strength.
    Good,
    /// Holds, with less.
    Weaker,
    /// Boxes that need it are refused.
    Missing,
}

pub(crate) fn doctor(asked: &Doctor) -> Result<u8, Failure> {
    let host = Host::probe();
    host.cgroups.remove_old();
    let tiers = tiers::all(
        &host,
        if asked.bench {
            Effort::Timed
        } else {
            Effort::Once
        },
    );
    let findings = [
        kernel(),
        namespaces(),
        landlock(&host),
        seccomp(),
        limits(&host),
        network(),
        cpu_share(&host),
        state(),
    ];
    let usable = findings
        .iter()
        .all(|finding| finding.ok != Standing::Missing);
    if asked.format.output == OutputFormat::Json {
        print::json(&json!({"usable": usable, "findings": findings, "tiers": tiers}));
    } else {
        let on = print::stdout_colours();
        for finding in &findings {
            let mark = match finding.ok {
                Standing::Good => print::styled("ok     ", "32", on),
                Standing::Weaker => print::styled("weaker ", "33", on),
                Standing::Missing => print::styled("missing", "31", on),
            };
            print::out(&format!("{mark}  {:<18} {}\n", finding.name, finding.found));
            if let Some(hint) = &finding.hint {
                print::out(&format!("         {:<18} → {hint}\n", ""));
            }
        }
        tiers::show(&tiers, on);
    }
    Ok(if usable { exit::OK } else { exit::NO })
}

fn finding(
    name: &'static str,
    ok: Standing,
    found: impl Into<String>,
    hint: Option<&str>,
) -> Finding {
    Finding {
        name,
        ok,
        found: found.into(),
        hint: hint.map(str::to_owned),
    }
}

fn kernel() -> Finding {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release
        .split(['.', '-'])
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= (5, 14) {
        finding("kernel", Standing::Good, format!("Linux {release}"), None)
    } else {
        finding(
            "kernel",
            Standing::Missing,
            format!("Linux {release}"),
            Some("Belljar needs Linux 5.14 or later"),
        )
    }
}

fn namespaces() -> Finding {
    match Host::try_namespaces() {
        Ok(()) => finding(
            "namespaces",
            Standing::Good,
            "user, pid, mount, network, ipc, uts, cgroup",
            None,
        ),
        Err(errno) => finding(
            "namespaces",
            Standing::Missing,
            format!("refused by the kernel ({})", std::io::Error::from(errno)),
            Some(
                "as root: sysctl -w user.max_user_namespaces=15000; on Ubuntu 24.04 and later also \
                 sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 or an AppArmor profile for belljar; \
                 in Docker: --security-opt seccomp=unconfined --security-opt systempaths=unconfined",
            ),
        ),
    }
}

fn landlock(host: &Host) -> Finding {
    match host.landlock_abi {
        None => finding(
            "landlock",
            Standing::Missing,
            "not in this kernel",
            Some("boot with a kernel that has CONFIG_SECURITY_LANDLOCK and 'landlock' in lsm="),
        ),
        Some(abi @ 1..=2) => finding(
            "landlock",
            Standing::Weaker,
            format!(
                "ABI {abi}: truncation, device ioctls and signals are held by other walls alone"
            ),
            Some("Linux 6.12 or later has ABI 6"),
        ),
        Some(abi) => finding("landlock", Standing::Good, format!("ABI {abi}"), None),
    }
}

fn seccomp() -> Finding {
    if Host::has_seccomp_notifications() {
        finding(
            "seccomp",
            Standing::Good,
            "filter with user notification",
            None,
        )
    } else {
        finding(
            "seccomp",
            Standing::Missing,
            "no user notification",
            Some("boot a kernel with CONFIG_SECCOMP_FILTER, 5.14 or later"),
        )
    }
}

fn network() -> Finding {
    match Host::try_network() {
        Ok(()) => finding(
            "egress",
            Standing::Good,
            "nf_tables with tproxy, log and reject: rules can open hosts",
            None,
        ),
        Err(errno) => finding(
            "egress",
            Standing::Weaker,
            format!(
                "closed whatever the rules say: the kernel refused ({})",
                std::io::Error::from(errno)
            ),
            Some(
                "a box whose rules open something is refused; load or build nf_tables, nft_tproxy, nft_log,                  nfnetlink_log, nft_reject_inet and nft_limit",
            ),
        ),
    }
}

fn limits(host: &Host) -> Finding {
    match &host.cgroups {
        Cgroups::None { why } => finding(
            "limits",
            Standing::Weaker,
            format!("by sampling every 25 ms: {why}"),
            Some("systemd-run --user --scope -p Delegate=yes belljar run …, or run as root"),
        ),
        cgroups => finding(
            "limits",
            Standing::Good,
            format!("{}, exact", cgroups.name()),
            None,
        ),
    }
}

fn cpu_share(host: &Host) -> Finding {
    if host.cgroups.can_limit_cpu() {
        finding(
            "max_cpu_percent",
            Standing::Good,
            "by the kernel's scheduler",
            None,
        )
    } else {
        finding(
            "max_cpu_percent",
            Standing::Weaker,
            "refused: needs a cgroup with the cpu controller",
            Some("systemd-run --user --scope -p Delegate=yes belljar run …, or run as root"),
        )
    }
}

fn state() -> Finding {
    match StateDir::find() {
        Ok(state) => finding(
            "state directory",
            Standing::Good,
            state.path().display().to_string(),
            None,
        ),
        Err(error) => finding(
            "state directory",
            Standing::Missing,
            error.to_string(),
            Some("set BELLJAR_STATE_DIR to a directory you can write to"),
        ),
    }
}
