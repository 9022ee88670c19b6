//! What the processes of a box have read from disks and written to them, as the kernel counts it for each.

use std::fs;

/// More processes than are looked at in one go.
const MOST: usize = 4096;

/// Bytes read and written by a box so far.
#[derive(Debug, Default)]
pub(super) struct Disk {
    first: Option<u32>,
    read: u64,
    written: u64,
}

impl Disk {
    /// Of the box with this first process.
    pub(super) fn of(first: i32) -> Self {
        Self {
            first: u32::try_from(first).ok(),
            ..Self::default()
        }
    }

    /// Looks. Whoever waits for a child takes over its count, so little is lost with processes that end between two looks; it
    /// never becomes less.
    pub(super) fn look(&mut self) -> (u64, u64) {
        let (mut read, mut written) = (0u64, 0u64);
        let mut next: Vec<u32> = self.first.into_iter().collect();
        let mut seen = 0;
        while let Some(pid) = next.pop() {
            seen += 1;
            if seen > MOST {
                break;
            }
            next.extend(children(pid));
            if let Some((more_read, more_written)) = counted(pid) {
                read = read.saturating_add(more_read);
                written = written.saturating_add(more_written);
            }
        }
        self.read = self.read.max(read);
        self.written = self.written.max(written);
        (self.read, self.written)
    }
}

fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let lists = threads.into_iter().flatten().flatten();
    let lists = lists.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| {
            let numbers = list.split_ascii_whitespace();
            numbers
                .filter_map(|number| number.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Nothing where the kernel does not say, or not to us.
fn counted(pid: u32) -> Option<(u64, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<u64>().ok()
    };
    Some((number("read_bytes:")?, number("write_bytes:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_below_us_is_found_and_counts() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("a child");
        assert!(children(std::process::id()).contains(&child.id()));
        assert!(counted(child.id()).is_some());
        child.kill().expect("end the child");
        child.wait().expect("wait for the child");
        assert_eq!(Disk::default().look(), (0, 0));
    }
}
