//! Judges what happened by the contract alone. It keeps its own books and asks the controller nothing, so that a controller that
//! lets something pass is found out.

use serde::{Deserialize, Serialize};

belljar_policy::codes! {
    /// Something the controller must hold. The codes are stable.
    pub enum Control {
        /// No more workers alive than the contract allows.
        Quota = "quota",
        /// No two children of one parent sooner than the cooldown.
        Cooldown = "cooldown",
        /// Nobody deeper than the contract allows.
        Depth = "depth",
        /// Nobody whose depth is not its parent's plus one.
        DepthSpoof = "depth_spoof",
        /// Nobody alive after its time.
        Expiry = "expiry",
        /// Nobody alive who was silent for too long.
        Heartbeat = "heartbeat",
        /// Nobody alive whose parent ended, where the contract says so.
        ParentExit = "parent_exit",
        /// Nobody let in whose parent is not alive.
        ParentKnown = "parent_known",
        /// No manifest used twice.
        SingleUse = "single_use",
        /// No manifest that says something else than its grant.
        Manifest = "manifest",
        /// Nobody let in after the kill switch.
        KillSwitchLatch = "kill_switch_latch",
        /// Nobody alive after the kill switch.
        KillSwitchKills = "kill_switch_kills",
        /// No child of a worker in quarantine.
        Quarantine = "quarantine",
        /// Boxes hold no more together than the contract's budget.
        Budget = "budget",
        /// Nobody let in after the clock was turned back.
        Clock = "clock",
        /// No more workers than the stop conditions let live.
        StopCondition = "stop_condition",
        /// As many alive as were let in and have not ended.
        Conservation = "conservation",
    }
}

impl Serialize for Control {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code())
    }
}

impl<'de> Deserialize<'de> for Control {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::from_code(&text)
            .ok_or_else(|| serde::de::Error::custom(format!("no such control: {text}")))
    }
}

/// What the referee found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings(std::collections::BTreeMap<&'static str, u64>);

impl Findings {
    /// A control was broken.
    pub(crate) fn broken(&mut self, control: Control) {
        *self.0.entry(control.code()).or_default() += 1;
    }

    /// Notes a control as broken unless this holds.
    pub(crate) fn expect(&mut self, control: Control, holds: bool) {
        if !holds {
            self.broken(control);
        }
    }

    /// Each broken control with how often it was.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(control, count)| (*control, *count))
    }
}
