//! A box's stand-ins, all of them, and the record that says what they are.

use crate::error::RunError;
use crate::stand_in::{Outcome, StandIn};
use crate::state::{HeldRecord, RunRecord, StateDir};
use belljar_policy::Capability;
use belljar_sandbox::plan::Kind;
use rustix::io::Errno;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// The stand-ins of one box. Dropped, they are taken away.
#[derive(Debug)]
pub(crate) struct BoxStandIns<'a> {
    list: Vec<StandIn>,
    state: &'a StateDir,
    held: &'a HeldRecord,
    record: RunRecord<&'a Capability>,
}

impl<'a> BoxStandIns<'a> {
    pub(crate) fn new(
        state: &'a StateDir,
        held: &'a HeldRecord,
        record: RunRecord<&'a Capability>,
    ) -> Self {
        Self {
            list: Vec::new(),
            state,
            held,
            record,
        }
    }

    /// Puts an empty entry wherever the box must not make one.
    pub(crate) fn put(&mut self, places: &[(PathBuf, Kind)]) -> Result<(), RunError> {
        if places.is_empty() {
            return Ok(());
        }
        // Where they will be is noted before they are there, and what they are before anything runs in the box: whenever
        // this process is killed, the next run knows what to clear away.
        let paths = places.iter().map(|(path, _)| path.clone());
        self.record.stand_ins.extend(paths);
        self.held.write(&self.record)?;
        for (path, kind) in places {
            self.put_one(path, *kind)
                .map_err(|errno| RunError::Refused {
                    what: format!(
                        "{} is protected and can't be held: {}",
                        path.display(),
                        std::io::Error::from(errno)
                    ),
                    hint: "use workspace: overlay, or list the path in writable_paths".into(),
                })?;
        }
        self.note()
    }

    /// Nothing is put where something has come into being meanwhile; it is covered all the same.
    fn put_one(&mut self, path: &Path, kind: Kind) -> Result<(), Errno> {
        self.list.extend(StandIn::put(path, kind, self.state)?);
        Ok(())
    }

    fn note(&mut self) -> Result<(), RunError> {
        let made = self.list.iter().filter_map(StandIn::made);
        self.record.put_stand_ins = made.cloned().collect();
        self.held.write(&self.record)
    }

    /// Takes them away, but for those that other boxes use. Says where something was left that was not ours.
    pub(crate) fn take_away(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        let mut known = HashSet::new();
        // Where one was put again, the newest is the one that should be there.
        for stand_in in std::mem::take(&mut self.list).into_iter().rev() {
            let (path, is_made) = (stand_in.path().to_owned(), stand_in.made().is_some());
            let outcome = stand_in.take_away();
            if !known.insert(path.clone()) || !is_made {
                continue;
            }
            let why = match outcome {
                Outcome::Settled => continue,
                Outcome::Filled => {
                    "was kept empty for the box, and somebody outside of it put something there: it stays"
                }
                Outcome::Swapped => {
                    "was kept empty for the box, and somebody outside of it put something else in its place: it stays"
                }
            };
            left.push(format!("{} {why}", path.display()));
        }
        left
    }
}
