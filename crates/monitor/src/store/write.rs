//! One transaction a second.

use belljar_api::{AgentId, AlertState, AlertView, EventView, Shown, SilenceView};
use rusqlite::{OptionalExtension as _, Transaction, params};

use super::{Store, signed, unsigned};
use crate::history::{Point, by_minute, decode, encode, write_number};

/// Minutes or hours that are dropped at once, so that no transaction is long.
const STEP: usize = 4;
/// Events that are dropped at once.
const EVENTS_STEP: i64 = 5_000;
/// Pages that are given back to the file system at once.
const PAGES_STEP: u32 = 256;

/// Agents' points.
pub(crate) type Points = Vec<(AgentId, Shown, Vec<Point>)>;

/// What is written at once.
#[derive(Default)]
pub(crate) struct Batch {
    /// Seconds that are over.
    pub(crate) journal: Points,
    /// Minutes that are.
    pub(crate) minutes: Vec<Minute>,
    pub(crate) events: Vec<EventView>,
    pub(crate) alerts: Vec<AlertView>,
    pub(crate) silences: Vec<SilenceView>,
}

/// A minute that is over.
pub(crate) struct Minute {
    pub(crate) minute: u64,
    pub(crate) points: Points,
}

/// What is kept; the rest goes, a little at a time.
pub(crate) struct Keep {
    pub(crate) seconds_from_minute: u64,
    pub(crate) minutes_from_hour: u64,
    pub(crate) events_from_id: u64,
    pub(crate) events_from_ms: u64,
    pub(crate) resolved_from_ms: u64,
}

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.journal.is_empty()
            && self.minutes.is_empty()
            && self.events.is_empty()
            && self.alerts.is_empty()
            && self.silences.is_empty()
    }
}

impl Store {
    /// Writes all of it, or nothing.
    pub(crate) fn write(&mut self, batch: &Batch) -> Result<(), rusqlite::Error> {
        if batch.is_empty() {
            return Ok(());
        }
        let transaction = self
            .connection
            .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let mut agents = self.agents.clone();
        journal(&transaction, &mut agents, &batch.journal)?;
        for minute in &batch.minutes {
            fold(&transaction, &mut agents, minute)?;
        }
        events(&transaction, &batch.events)?;
        alerts(&transaction, &batch.alerts)?;
        silences(&transaction, &batch.silences)?;
        transaction.commit()?;
        self.agents = agents;
        Ok(())
    }

    /// Drops a little of what is too old.
    pub(crate) fn retain(&mut self, keep: &Keep) -> Result<(), rusqlite::Error> {
        let transaction = self
            .connection
            .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let mut freed = 0;
        for (oldest, drop, from) in [
            (
                "SELECT min(minute) FROM seconds",
                "DELETE FROM seconds WHERE minute = ?1",
                keep.seconds_from_minute,
            ),
            (
                "SELECT min(hour) FROM minutes",
                "DELETE FROM minutes WHERE hour = ?1",
                keep.minutes_from_hour,
            ),
        ] {
            for _ in 0..STEP {
                let first: Option<i64> = transaction
                    .prepare_cached(oldest)?
                    .query_row([], |row| row.get(0))?;
                match first {
                    Some(first) if first < signed(from) => {
                        freed += transaction.prepare_cached(drop)?.execute([first])?;
                    }
                    _ => break,
                }
            }
        }
        let oldest: Option<i64> =
            transaction.query_row("SELECT min(id) FROM events", [], |row| row.get(0))?;
        if let Some(oldest) = oldest {
            freed += transaction
                .prepare_cached("DELETE FROM events WHERE id < ?1 AND (id < ?2 OR at < ?3)")?
                .execute(params![
                    oldest + EVENTS_STEP,
                    signed(keep.events_from_id),
                    signed(keep.events_from_ms)
                ])?;
        }
        freed += transaction
            .prepare_cached("DELETE FROM alerts WHERE state = 'resolved' AND last < ?1")?
            .execute([signed(keep.resolved_from_ms)])?;
        // The last one stays: numbers go on from it.
        freed += transaction
            .prepare_cached("DELETE FROM silences WHERE until < ?1 AND number < (SELECT max(number) FROM silences)")?
            .execute([signed(keep.resolved_from_ms)])?;
        // An agent is forgotten with the last hour that speaks of it.
        let mut forgotten = transaction
            .prepare_cached("DELETE FROM agents WHERE last < ?1 AND number > 0 RETURNING id")?;
        let ids = forgotten.query_map([signed(keep.minutes_from_hour * 3600)], |row| {
            row.get::<_, String>(0)
        })?;
        let ids: Vec<String> = ids.collect::<Result<_, _>>()?;
        drop(forgotten);
        transaction.commit()?;
        self.agents
            .retain(|id, _| !ids.iter().any(|gone| gone == id.as_str()));
        if freed > 0 {
            let vacuum = format!("PRAGMA incremental_vacuum({PAGES_STEP})");
            self.connection.execute_batch(&vacuum)?;
        }
        Ok(())
    }

    /// The clock was wrong: what was noted for later than this second never was.
    pub(crate) fn forget_after(&mut self, second: u64) -> Result<(), rusqlite::Error> {
        let transaction = self.connection.transaction()?;
        transaction.execute("DELETE FROM journal WHERE last > ?1", [signed(second)])?;
        transaction.execute(
            "DELETE FROM seconds WHERE minute > ?1",
            [signed(second / 60)],
        )?;
        transaction.execute(
            "DELETE FROM minutes WHERE hour > ?1",
            [signed(second / 3600)],
        )?;
        transaction.execute(
            "UPDATE facts SET value = min(value, ?1) WHERE name = 'folded_until'",
            [signed(second)],
        )?;
        transaction.commit()
    }
}

type Numbers = std::collections::HashMap<AgentId, i64>;

fn number_of(
    transaction: &Transaction<'_>,
    agents: &mut Numbers,
    id: &AgentId,
    name: &Shown,
    last: u64,
) -> Result<i64, rusqlite::Error> {
    if let Some(number) = agents.get(id) {
        return Ok(*number);
    }
    let number = transaction
        .prepare_cached(
            "INSERT INTO agents (id, name, last) VALUES (?1, ?2, ?3)
             ON CONFLICT (id) DO UPDATE SET name = excluded.name RETURNING number",
        )?
        .query_row(params![id.as_str(), name.as_str(), signed(last)], |row| {
            row.get(0)
        })?;
    agents.insert(id.clone(), number);
    Ok(number)
}

fn journal(
    transaction: &Transaction<'_>,
    agents: &mut Numbers,
    points: &Points,
) -> Result<(), rusqlite::Error> {
    let (mut data, mut last) = (Vec::new(), 0);
    for (id, name, points) in points {
        let latest = points.last().map_or(0, |point| point.at);
        let number = number_of(transaction, agents, id, name, latest)?;
        let chunk = encode(points);
        write_number(&mut data, unsigned(number));
        write_number(&mut data, chunk.len() as u64);
        data.extend(chunk);
        last = last.max(latest);
    }
    if !data.is_empty() {
        transaction
            .prepare_cached("INSERT INTO journal (last, data) VALUES (?1, ?2)")?
            .execute(params![signed(last), data])?;
    }
    Ok(())
}

/// A minute by second to its place, and as one point to its hour.
fn fold(
    transaction: &Transaction<'_>,
    agents: &mut Numbers,
    minute: &Minute,
) -> Result<(), rusqlite::Error> {
    let mut sum = std::collections::BTreeMap::new();
    for (id, name, points) in &minute.points {
        let latest = points.last().map_or(0, |point| point.at);
        let number = number_of(transaction, agents, id, name, latest)?;
        transaction
            .prepare_cached("UPDATE agents SET last = max(last, ?2) WHERE number = ?1")?
            .execute(params![number, signed(latest)])?;
        put(transaction, number, minute.minute, points)?;
        for point in points {
            sum.entry(point.at)
                .or_insert_with(|| Point::at(point.at))
                .add(point);
        }
    }
    let sum: Vec<Point> = sum.into_values().collect();
    if !sum.is_empty() {
        put(transaction, 0, minute.minute, &sum)?;
    }
    let until = signed((minute.minute + 1) * 60);
    transaction
        .prepare_cached("DELETE FROM journal WHERE last < ?1")?
        .execute([until])?;
    transaction
        .prepare_cached(
            "INSERT INTO facts (name, value) VALUES ('folded_until', ?1)
             ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)",
        )?
        .execute([until])?;
    Ok(())
}

fn put(
    transaction: &Transaction<'_>,
    agent: i64,
    minute: u64,
    seconds: &[Point],
) -> Result<(), rusqlite::Error> {
    transaction
        .prepare_cached("INSERT OR REPLACE INTO seconds (minute, agent, data) VALUES (?1, ?2, ?3)")?
        .execute(params![signed(minute), agent, encode(seconds)])?;
    let hour = signed(minute / 60);
    let known: Option<Vec<u8>> = transaction
        .prepare_cached("SELECT data FROM minutes WHERE hour = ?1 AND agent = ?2")?
        .query_row(params![hour, agent], |row| row.get(0))
        .optional()?;
    // An hour that can't be read is begun anew: the minutes to come are worth more.
    let mut points = known
        .and_then(|data| decode(&data).ok())
        .unwrap_or_default();
    points.retain(|point| point.at < minute);
    points.extend(by_minute(seconds));
    transaction
        .prepare_cached("INSERT OR REPLACE INTO minutes (hour, agent, data) VALUES (?1, ?2, ?3)")?
        .execute(params![hour, agent, encode(&points)])?;
    Ok(())
}

fn events(transaction: &Transaction<'_>, events: &[EventView]) -> Result<(), rusqlite::Error> {
    let mut insert = transaction.prepare_cached(
        "INSERT OR IGNORE INTO events (id, at, agent, kind, severity, text, code, hint) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?;
    for event in events {
        insert.execute(params![
            signed(event.id),
            signed(event.at_ms),
            event.agent.as_ref().map(AgentId::as_str),
            crate::events::kind_word(event.kind),
            event.severity as i64,
            event.text.as_str(),
            event.code.as_ref().map(Shown::as_str),
            event.hint.as_ref().map(Shown::as_str),
        ])?;
    }
    Ok(())
}

fn alerts(transaction: &Transaction<'_>, alerts: &[AlertView]) -> Result<(), rusqlite::Error> {
    let mut insert = transaction.prepare_cached(
        "INSERT OR REPLACE INTO alerts (number, agent, state, last, view) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    for alert in alerts {
        let Ok(number) = alert.id.as_str().parse::<i64>() else {
            continue;
        };
        let view = serde_json::to_string(alert).unwrap_or_default();
        insert.execute(params![
            number,
            alert.agent.as_ref().map(AgentId::as_str),
            state_word(alert.state),
            signed(alert.last_at_ms),
            view,
        ])?;
    }
    Ok(())
}

fn silences(
    transaction: &Transaction<'_>,
    silences: &[SilenceView],
) -> Result<(), rusqlite::Error> {
    let mut insert = transaction.prepare_cached(
        "INSERT OR REPLACE INTO silences (number, until, view) VALUES (?1, ?2, ?3)",
    )?;
    for silence in silences {
        let Ok(number) = silence.id.as_str().parse::<i64>() else {
            continue;
        };
        let view = serde_json::to_string(silence).unwrap_or_default();
        insert.execute(params![number, signed(silence.until_ms), view])?;
    }
    Ok(())
}

pub(super) fn state_word(state: AlertState) -> &'static str {
    match state {
        AlertState::Open => "open",
        AlertState::Acknowledged => "acknowledged",
        AlertState::Resolved => "resolved",
    }
}
