//! What a box tries whose network is closed: nothing stands there to be asked, but its own kernel counts what found no way out.

use std::fs;

use belljar_egress::{Refusal, RefusalCode, Way};

/// Where it was going is not known: the kernel counts, and tells no places.
const ANY_HOST: &str = "any host";

/// The count of a box's network namespace at the last look.
#[derive(Debug, Default)]
pub(crate) struct ClosedNetwork {
    seen: u64,
}

impl ClosedNetwork {
    /// Whether this is the first of all, and how often something found no way out since the last look.
    pub(crate) fn look(&mut self, init: i32) -> (bool, u64) {
        let now = without_route(init);
        let more = now.saturating_sub(self.seen);
        let is_first = self.seen == 0 && more > 0;
        self.seen = self.seen.max(now);
        (is_first, more)
    }

    pub(crate) fn refusal() -> Refusal {
        Refusal {
            way: Way::Packet,
            host: ANY_HOST.to_owned(),
            port: None,
            rule: None,
            code: RefusalCode::NoRule,
            detail: Some("its network is closed".to_owned()),
            hint: "the policy has no network_egress_rules: nothing is reachable; add those that it needs".to_owned(),
        }
    }
}

/// Connections and packets of that process's network that no route leads anywhere, of both families.
fn without_route(pid: i32) -> u64 {
    let read =
        |name: &str| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    of_table(&read("snmp")).saturating_add(of_list(&read("snmp6")))
}

/// A line of names and a line of numbers for each protocol.
fn of_table(text: &str) -> u64 {
    let mut lines = text.lines().filter(|line| line.starts_with("Ip: "));
    let (Some(names), Some(numbers)) = (lines.next(), lines.next()) else {
        return 0;
    };
    let column = names.split(' ').position(|name| name == "OutNoRoutes");
    column
        .and_then(|column| numbers.split(' ').nth(column))
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

/// A name and a number on each line.
fn of_list(text: &str) -> u64 {
    let mut lines = text.lines().map(str::split_whitespace);
    lines
        .find_map(|mut words| match words.next() {
            Some("Ip6OutNoRoutes") => words.next()?.parse().ok(),
            _ => None,
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counts_are_read() {
        let table =
            "Ip: Forwarding OutDiscards OutNoRoutes ReasmTimeout\nIp: 2 7 41 0\nIcmp: a\nIcmp: 1\n";
        assert_eq!(of_table(table), 41);
        assert_eq!(of_list("Ip6InReceives  \t3\nIp6OutNoRoutes  \t5\n"), 5);
        for other in [
            "",
            "Ip: OutNoRoutes\n",
            "Ip: X\nIp: 1\n",
            "Ip6OutNoRoutes\n",
        ] {
            assert_eq!((of_table(other), of_list(other)), (0, 0), "{other}");
        }
    }
}
