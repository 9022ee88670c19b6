//! Accounts of a process tree where no control group can be had: by looking at the box's own /proc.

use crate::cgroup::Spending;
use crate::memory_file::MemoryFiles;
use crate::sys;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Dir, Mode, OFlags};
use std::collections::HashMap;
use std::time::Duration;

/// Looks at a box from outside, through a handle on its /proc.
#[derive(Debug)]
pub struct Sampler {
    proc_directory: OwnedFd,
    known: HashMap<(u32, u64), Ticks>,
    total: u64,
    /// Bytes at the last look.
    memory: u64,
    peak: u64,
    /// Processes and threads at the last look, init aside.
    threads: usize,
    most_threads: usize,
    /// Whether all processes but init were stopped at the last look.
    still: bool,
    /// The kernel's own count of CPU time, where the host lets us have it.
    counter: Option<OwnedFd>,
    /// Where the program's memory is, if it is not its processes' own.
    files: Option<MemoryFiles>,
}

/// What a box's processes on the host are to its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accounting {
    /// The program's own.
    OfTheProgram,
    /// Those of a kernel that the program runs on.
    OfItsKernel,
}

/// A process's own CPU time and that of children it has waited for, in clock ticks.
#[derive(Debug, Clone, Copy, Default)]
struct Ticks {
    own: u64,
    children: u64,
}

/// A process as one look shows it.
struct Seen {
    pid: u32,
    started: u64,
    ticks: Ticks,
    threads: u64,
    resident: u64,
    stopped: bool,
}

impl Sampler {
    pub(crate) fn new(proc_directory: OwnedFd, accounting: Accounting) -> Self {
        Self {
            proc_directory,
            known: HashMap::new(),
            total: 0,
            memory: 0,
            peak: 0,
            threads: 0,
            most_threads: 0,
            still: false,
            counter: None,
            files: match accounting {
                Accounting::OfTheProgram => None,
                Accounting::OfItsKernel => Some(MemoryFiles::default()),
            },
        }
    }

    pub(crate) fn count_with(&mut self, counter: OwnedFd) {
        self.counter = Some(counter);
    }

    /// One look. Memory is the resident set of every process; where that sum looks dangerous, the caller asks
    /// [`Sampler::proportional`], which shares pages out fairly but costs more.
    pub fn look(&mut self) -> Spending {
        let seen = self.processes();
        let mut grown_own = 0;
        let mut grown_children = 0;
        let mut now = HashMap::with_capacity(seen.len());
        for process in &seen {
            let key = (process.pid, process.started);
            let before = self.known.remove(&key).unwrap_or_default();
            grown_own += process.ticks.own.saturating_sub(before.own);
            grown_children += process.ticks.children.saturating_sub(before.children);
            now.insert(key, process.ticks);
        }
        // What is still in `known` has ended: its time moved to a parent's "children", where it is not new.
        let moved: u64 = self
            .known
            .values()
            .map(|ticks| ticks.own + ticks.children)
            .sum();
        self.total += grown_own + grown_children.saturating_sub(moved);
        self.known = now;
        // Init is seen by some keepers and not by others.
        let others = seen.iter().filter(|process| process.pid != 1);
        self.threads = others.map(|process| process.threads as usize).sum();
        let mut others = seen.iter().filter(|process| process.pid != 1);
        self.still = others.all(|process| process.stopped);
        self.most_threads = self.most_threads.max(self.threads);
        let memory = match self.files.take() {
            None => seen.iter().map(|process| process.resident).sum(),
            Some(mut files) => {
                let pids: Vec<u32> = seen.iter().map(|process| process.pid).collect();
                let own: u64 = pids.iter().filter_map(|pid| self.unshared(*pid)).sum();
                let kept = files.bytes(&self.proc_directory, &pids);
                self.files = Some(files);
                own + kept
            }
        };
        self.memory = memory;
        self.peak = self.peak.max(memory);
        let looked = Duration::from_millis(
            self.total * 1000 / rustix::param::clock_ticks_per_second().max(1),
        );
        Spending {
            cpu: self.counted().unwrap_or(Duration::ZERO).max(looked),
            memory,
            peak_memory: self.peak,
            memory_kills: 0,
            forks_refused: 0,
            processes: Some(self.threads as u64),
            // Before the first look nothing is known.
            peak_processes: Some(self.most_threads as u64).filter(|most| *most > 0),
        }
    }

    fn counted(&self) -> Option<Duration> {
        sys::read_cpu_counter(self.counter.as_ref()?.as_fd()).ok()
    }

    /// Bytes of memory with shared pages divided among those who share them.
    pub fn proportional(&self) -> u64 {
        if self.files.is_some() {
            return self.memory;
        }
        self.pids()
            .iter()
            .filter_map(|pid| {
                let text = self.read(&format!("{pid}/smaps_rollup"))?;
                let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
                line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
            })
            .sum::<u64>()
            .saturating_mul(1024)
    }

    /// How many processes and threads the last look saw, init aside.
    pub fn count(&self) -> usize {
        self.threads
    }

    /// Whether the last look saw every process stopped, init aside.
    pub fn is_still(&self) -> bool {
        self.still
    }

    fn processes(&self) -> Vec<Seen> {
        self.pids()
            .into_iter()
            .filter_map(|pid| self.process(pid))
            .collect()
    }

    fn pids(&self) -> Vec<u32> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(directory) = rustix::fs::openat(&self.proc_directory, c".", flags, Mode::empty())
        else {
            return Vec::new();
        };
        let Ok(entries) = Dir::new(directory) else {
            return Vec::new();
        };
        entries
            .filter_map(|entry| entry.ok()?.file_name().to_str().ok()?.parse().ok())
            .collect()
    }

    fn process(&self, pid: u32) -> Option<Seen> {
        let text = self.read(&format!("{pid}/stat"))?;
        // The name, in parentheses, may contain anything; what follows the last one is numbers.
        let rest = text.rsplit_once(')')?.1;
        let numbers: Vec<u64> = rest
            .split_whitespace()
            .map(|word| word.parse().unwrap_or(0))
            .collect();
        let at = |field: usize| numbers.get(field - 3).copied().unwrap_or(0);
        Some(Seen {
            pid,
            started: at(22),
            ticks: Ticks {
                own: at(14) + at(15),
                children: at(16) + at(17),
            },
            threads: at(20),
            resident: at(24).saturating_mul(rustix::param::page_size() as u64),
            stopped: matches!(
                rest.trim_start().as_bytes().first(),
                Some(b'T' | b't' | b'Z')
            ),
        })
    }

    /// Bytes of a process that are no file's.
    fn unshared(&self, pid: u32) -> Option<u64> {
        let text = self.read(&format!("{pid}/statm"))?;
        let mut pages = text.split_whitespace().skip(1).map(str::parse::<u64>);
        let (resident, shared) = (pages.next()?.ok()?, pages.next()?.ok()?);
        Some(resident.saturating_sub(shared) * rustix::param::page_size() as u64)
    }

    fn read(&self, path: &str) -> Option<String> {
        let file = rustix::fs::openat(
            self.proc_directory.as_fd(),
            path,
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .ok()?;
        std::io::read_to_string(std::fs::File::from(file)).ok()
    }
}
