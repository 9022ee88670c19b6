//! Enforcements that tests can take out, one at a time, to see that the threat suite notices.
//!
//! In every build but this crate's own unit tests [`enforced!`] is the plain condition: the holes
//! are not compiled, so no feature, variable or flag can open one.

/// The condition, unless a test of this crate has taken the enforcement out.
#[cfg(not(test))]
macro_rules! enforced {
    ($hole:ident, $condition:expr) => {
        $condition
    };
}

#[cfg(test)]
macro_rules! enforced {
    ($hole:ident, $condition:expr) => {
        ($condition) && !$crate::holes::is_open($crate::holes::Hole::$hole)
    };
}

pub(crate) use enforced;

#[cfg(test)]
pub(crate) use open::{Hole, is_open, with_hole};

#[cfg(test)]
mod open {
    use std::cell::Cell;

    macro_rules! holes {
        ($($name:ident,)*) => {
            /// One enforcement taken out.
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub(crate) enum Hole { $($name,)* }

            impl Hole {
                pub(crate) const ALL: &'static [Self] = &[$(Self::$name,)*];
            }
        };
    }

    holes! {
        QuotaAtIssue, QuotaAtRegister, CooldownAtIssue, CooldownAtRegister, DepthAtIssue, DepthAtRegister,
        DepthSpoofAtIssue, DepthSpoofAtRegister, ParentUnknownAtIssue, ParentUnknownAtRegister,
        QuarantineAtIssue, QuarantineAtRegister, ExpiryAtIssue, ExpiryAtRegister, GrantLapseAtRegister,
        ExpiryTimer, GrantTimer, HeartbeatTimer, ExpiryOfParent, LatchAtIssue, LatchAtRegister, LatchAtRoot,
        LatchSurvivesRestart, LatchKills, SubtreeKill, SingleUse, Mismatch, Epoch, EpochEnds, RevokedAtRegister, RevokeEnds,
        ClockAtIssue, ClockAtRegister, ClockDrift, ClockAcrossRestart, StopAtIssue, StopAtRegister,
        StopError, StopPanic, StopKills, StopQuarantines, BudgetOfParent, BudgetOfRoots, BudgetReserved, BudgetSpent,
        BudgetOverdraft, ParentExitKills, GrantsEndWithParent, LostAtRestart, LostIsSpent, QuotaAtRoot, Duplicate, ThawOnlyByOperator,
    }

    thread_local! {
        static OPEN: Cell<Option<Hole>> = const { Cell::new(None) };
    }

    pub(crate) fn is_open(hole: Hole) -> bool {
        OPEN.get() == Some(hole)
    }

    /// Runs `body` with one enforcement taken out, on this thread only.
    pub(crate) fn with_hole<T>(hole: Hole, body: impl FnOnce() -> T) -> T {
        OPEN.set(Some(hole));
        let result = body();
        OPEN.set(None);
        result
    }
}
