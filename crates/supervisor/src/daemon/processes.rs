//! The processes in a box, as the host's `/proc` shows them.

use std::collections::HashMap;
use std::fs;

use belljar_api::{ProcessView, Shown};

/// The most processes that are told of.
const MOST: usize = 2000;

/// All below the box's first process, parents first. That one itself is ours, and not of interest.
pub(super) fn below(first: u32) -> Vec<ProcessView> {
    let mut children: HashMap<u32, Vec<Seen>> = HashMap::new();
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in numbers {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        if let Some(seen) = Seen::of(pid) {
            children.entry(seen.parent).or_default().push(seen);
        }
    }
    let mut all = Vec::new();
    let mut next = vec![first];
    while let Some(parent) = next.pop() {
        for seen in children.remove(&parent).unwrap_or_default() {
            if all.len() >= MOST {
                return all;
            }
            next.push(seen.pid);
            all.push(seen.view());
        }
    }
    all
}

struct Seen {
    pid: u32,
    parent: u32,
    name: String,
    state: String,
    ticks: u64,
    threads: u64,
    pages: u64,
}

impl Seen {
    fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name may hold anything; the last bracket ends it.
        let (head, rest) = stat.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            pid,
            parent: u32::try_from(number(1)?).ok()?,
            name,
            state: (*fields.first()?).to_owned(),
            ticks: number(11)?.saturating_add(number(12)?),
            threads: number(17)?,
            pages: number(21)?,
        })
    }

    fn view(self) -> ProcessView {
        let line = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let words: Vec<String> = line
            .split(|byte| *byte == 0)
            .filter(|word| !word.is_empty())
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect();
        let command = match words.is_empty() {
            true => Shown::new(&self.name),
            false => Shown::command(&words),
        };
        let ticks = rustix::param::clock_ticks_per_second().max(1);
        ProcessView {
            pid: self.pid,
            parent: self.parent,
            command,
            state: Shown::new(&self.state),
            cpu_ms: self.ticks.saturating_mul(1000) / ticks,
            memory_bytes: self.pages.saturating_mul(rustix::param::page_size() as u64),
            threads: self.threads,
        }
    }
}
