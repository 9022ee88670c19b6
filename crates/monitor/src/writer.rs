//! The one thread that writes: a transaction a second. While it can't, memory goes on, and it tries again.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_api::{AlertView, EventKind, Severity, SilenceView};

use crate::clock::millis;
use crate::inner::Inner;
use crate::store::{Batch, Keep, Minute, Store, is_busy, is_damage, locked};

const EVERY: Duration = Duration::from_secs(1);
/// The longest time between two attempts to write.
const SLOWEST: Duration = Duration::from_secs(5);
/// A second is over when the sampler has had this long to tell of it, in seconds.
const GRACE: u64 = 2;
/// How often the file is looked through, in milliseconds.
const LOOK_EVERY: u64 = 60_000;
/// Room that must be left on the disk.
pub(crate) const LEAST_BYTES: u64 = 256 << 20;
/// The same, of a small disk.
pub(crate) const LEAST_PERCENT: u64 = 2;
/// Minutes that are folded at once.
const MOST_MINUTES: usize = 16;
/// Attempts that may fail for a lock before it is worth telling.
const PASSING: u32 = 3;

struct Writer {
    store: Store,
    /// Seconds before this one are in the journal.
    journaled: u64,
    failures: u32,
    try_again: Instant,
    /// When the file is looked at next, in milliseconds since 1970.
    look_at: u64,
}

/// Writes what happens from `opened` on, in seconds since 1970: what was before, a former life wrote down.
pub(crate) fn run(inner: &Arc<Inner>, store: Store, opened: u64) {
    let mut writer = Writer {
        store,
        journaled: opened,
        failures: 0,
        try_again: Instant::now(),
        look_at: inner.clock.now() + LOOK_EVERY,
    };
    let mut next = Instant::now() + EVERY;
    loop {
        inner.await_bell(next.saturating_duration_since(Instant::now()));
        let is_last = inner.is_stopping();
        if Instant::now() >= next {
            next = Instant::now() + EVERY;
            let now = inner.clock.now();
            let changes = locked(&inner.engine).tick(now);
            inner.apply(changes);
            let touched = locked(&inner.engine).touched();
            touched.iter().for_each(|alert| inner.changed(alert));
            let why = locked(&inner.health).failing.clone();
            let why = why.map(|why| format!("the history can't be written: {why}"));
            let failing = why.or_else(|| scarce(&inner.directory));
            let changes = locked(&inner.engine).storage(now, failing);
            inner.apply(changes);
        }
        if is_last || Instant::now() >= writer.try_again {
            writer.round(inner, is_last);
        }
        *locked(&inner.rounds.0) += 1;
        inner.rounds.1.notify_all();
        if is_last {
            return;
        }
    }
}

impl Writer {
    fn round(&mut self, inner: &Inner, is_last: bool) {
        let now = inner.clock.now() / 1000;
        self.look_at_file(inner);
        if std::mem::take(&mut locked(&inner.health).is_damaged) {
            self.replace(inner);
        }
        if locked(&inner.ring).stored_until() > now + 60 {
            // The clock was set back by more than a day.
            locked(&inner.ring).forget_after(now);
            self.journaled = now;
            let _later = self.store.forget_after(now);
        }
        let alerts: HashMap<String, AlertView> =
            std::mem::take(&mut *locked(&inner.changed_alerts));
        let over = now.saturating_sub(GRACE);
        // One lock at a time: a guard in the middle of an expression lives to its end.
        // The last time, the second that is not over is written too; the next life goes on with it.
        let journal_until = if is_last { now + 1 } else { over };
        let journal = locked(&inner.ring).all(self.journaled, journal_until);
        let minutes = finished_minutes(inner, over);
        let events = locked(&inner.log).unstored();
        let batch = Batch {
            journal,
            minutes,
            events,
            alerts: alerts.values().cloned().collect(),
            silences: std::mem::take(&mut *locked(&inner.changed_silences)),
        };
        // Where nothing comes in, nothing needs to go.
        let grows = !batch.minutes.is_empty() || !batch.events.is_empty();
        let written = self.store.write(&batch).and_then(|()| match grows {
            true => self.store.retain(&keep(inner, now)),
            false => Ok(()),
        });
        match written {
            Ok(()) => {
                self.journaled = self.journaled.max(over);
                let until = batch
                    .minutes
                    .last()
                    .map_or(0, |minute| (minute.minute + 1) * 60);
                locked(&inner.ring).stored(until, now);
                if let Some(last) = batch.events.last() {
                    locked(&inner.log).stored(last.id);
                }
                self.recovered(inner);
            }
            Err(error) => {
                let mut waiting = locked(&inner.changed_alerts);
                for (id, alert) in alerts {
                    // One that changed again in between is the newer.
                    waiting.entry(id).or_insert(alert);
                }
                drop(waiting);
                locked(&inner.changed_silences).splice(0..0, batch.silences);
                self.failed(inner, &error);
            }
        }
    }

    fn failed(&mut self, inner: &Inner, error: &rusqlite::Error) {
        self.failures = self.failures.saturating_add(1);
        // A lock is soon gone; a disk takes longer.
        let times = if is_busy(error) { 1 } else { self.failures };
        self.try_again = Instant::now() + EVERY.saturating_mul(times).min(SLOWEST);
        if is_damage(error) {
            self.replace(inner);
            return;
        }
        if !is_busy(error) {
            // What SQLite remembers of the file may be of no use after an error of the disk.
            let _still_failing = self.store.reopen();
        } else if self.failures < PASSING {
            return;
        }
        let text =
            format!("the history can't be written: {error}; the last minutes stay in memory");
        let is_news = locked(&inner.health)
            .failing
            .replace(error.to_string())
            .is_none();
        if is_news {
            inner.say(
                None,
                EventKind::Daemon,
                Severity::Critical,
                &text,
                Some("history_unwritable"),
            );
        }
    }

    fn recovered(&mut self, inner: &Inner) {
        self.failures = 0;
        if locked(&inner.health).failing.take().is_some() {
            let text = "the history can be written again";
            inner.say(
                None,
                EventKind::Daemon,
                Severity::Info,
                text,
                Some("history_writable"),
            );
        }
    }

    /// Sets a damaged file aside. What memory holds goes to the new one.
    fn replace(&mut self, inner: &Inner) {
        match self.store.replace() {
            Ok(aside) => {
                locked(&inner.health).generation += 1;
                self.journaled = locked(&inner.ring).stored_until();
                self.try_again = Instant::now();
                inner.set_aside(&aside);
            }
            Err(error) => {
                let is_news = locked(&inner.health)
                    .failing
                    .replace(error.to_string())
                    .is_none();
                if is_news {
                    let text = format!("the history is damaged and can't be set aside: {error}");
                    inner.say(
                        None,
                        EventKind::Daemon,
                        Severity::Critical,
                        &text,
                        Some("history_unwritable"),
                    );
                }
            }
        }
        // Open alerts are in memory, and are written to the new file.
        let open: Vec<AlertView> = locked(&inner.engine).open().cloned().collect();
        let silences: Vec<SilenceView> = locked(&inner.engine).silences(0).cloned().collect();
        *locked(&inner.changed_silences) = silences;
        let mut waiting = locked(&inner.changed_alerts);
        for alert in open {
            waiting.entry(alert.id.to_string()).or_insert(alert);
        }
    }

    /// Looks whether the file is still the one that was opened, and whole: what nobody reads is damaged unseen.
    fn look_at_file(&mut self, inner: &Inner) {
        let now = inner.clock.now();
        if now < self.look_at {
            return;
        }
        self.look_at = now + LOOK_EVERY;
        if self.store.is_damaged() {
            locked(&inner.health).is_damaged = true;
        }
    }
}

/// Why there is too little room on the disk of that directory, where there is.
fn scarce(directory: &Path) -> Option<String> {
    let disk = rustix::fs::statvfs(directory).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    too_little(bytes(disk.f_bavail), bytes(disk.f_blocks))
}

fn too_little(free: u64, all: u64) -> Option<String> {
    let least = (all / 100).saturating_mul(LEAST_PERCENT).min(LEAST_BYTES);
    let text = || {
        format!(
            "the disk of the state directory has {} MiB left",
            free >> 20
        )
    };
    (free < least).then(text)
}

/// Minutes that are over and not in the store.
fn finished_minutes(inner: &Inner, over: u64) -> Vec<Minute> {
    let ring = locked(&inner.ring);
    let Some(first) = ring.first_unstored(over) else {
        return Vec::new();
    };
    let mut minutes = Vec::new();
    for minute in first / 60..over / 60 {
        // Of a minute that was begun in a former life, the rest may be stored already: all of it is written again.
        let points = ring.all(minute * 60, (minute + 1) * 60);
        if !points.is_empty() {
            minutes.push(Minute { minute, points });
        }
        if minutes.len() >= MOST_MINUTES {
            break;
        }
    }
    minutes
}

fn keep(inner: &Inner, now: u64) -> Keep {
    let settings = &inner.settings.monitor;
    let before = |kept: Duration| now.saturating_sub(kept.as_secs());
    let events_ms = (now * 1000).saturating_sub(millis(settings.events_kept));
    Keep {
        seconds_from_minute: before(settings.seconds_kept) / 60,
        minutes_from_hour: before(settings.minutes_kept) / 3600,
        events_from_id: locked(&inner.log)
            .last()
            .saturating_sub(settings.most_events)
            + 1,
        events_from_ms: events_ms,
        resolved_from_ms: events_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_full_before_nothing_fits() {
        const MIB: u64 = 1 << 20;
        for (free, all, expect) in [
            (0, 0, false),
            (0, 64 * MIB, true),
            (2 * MIB, 64 * MIB, false),
            (255 * MIB, 1 << 40, true),
            (256 * MIB, 1 << 40, false),
        ] {
            assert_eq!(too_little(free, all).is_some(), expect, "{free} of {all}");
        }
    }
}
