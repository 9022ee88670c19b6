//! What the bridge passes on of its guest's program to the box's init: what was refused to it, and how it ended.

use crate::microvm::{TOLD, place};
use crate::native::{Rule, Verdict};
use crate::order::Order;
use crate::tier::rules_inside;
use crate::told::{Checked, FORKS, ProgramEnd, Report};
use std::io;
use std::path::Path;

/// What a guest may tell, and where it is passed on.
pub(super) struct Telling {
    report: Report,
    rules: Vec<Rule>,
    has_process_limit: bool,
    checked: Checked,
}

impl Telling {
    pub(super) fn open(order: &Order) -> io::Result<Self> {
        Self::open_at(&place(TOLD), order)
    }

    pub(super) fn open_at(file: &Path, order: &Order) -> io::Result<Self> {
        Ok(Self {
            report: Report::open(file)?,
            rules: rules_inside(order.spawn()),
            has_process_limit: order.processes > 0,
            checked: Checked::new(),
        })
    }

    /// Passes on how often something was refused. Not what no guest of this order says: then it is false.
    pub(super) fn refused(&mut self, which: u32, hits: u32) -> bool {
        let which = which as usize;
        let is_counted = match which {
            FORKS => self.has_process_limit,
            rule => self
                .rules
                .get(rule)
                .is_some_and(|rule| matches!(rule.verdict, Verdict::Report(_))),
        };
        if !is_counted || !self.checked.take(which, hits) {
            return false;
        }
        // There is room for it, so that nothing can be in the way.
        let _ = self.report.refused(which, hits);
        true
    }

    /// Passes on how the program ended. Whoever hears nothing takes it for our own failure.
    pub(super) fn ended(&mut self, end: ProgramEnd) -> io::Result<()> {
        self.report.ended(end)
    }
}
