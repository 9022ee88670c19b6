//! The tables, and what is found in them when a supervisor starts.

use std::collections::HashMap;
use std::path::PathBuf;

use belljar_api::{AgentId, AlertView, Shown, SilenceView};
use rusqlite::Connection;

use super::unsigned;
use crate::history::{Point, decode, read_number};

const VERSION: i64 = 1;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS agents (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, last INTEGER NOT NULL);
    -- Every second as it comes; it goes when the minute it is of is folded into the tables below.
    CREATE TABLE IF NOT EXISTS journal (number INTEGER PRIMARY KEY, last INTEGER NOT NULL, data BLOB NOT NULL);
    -- An agent's minute by second, and its hour by minute. Agent 0 is all of them together.
    CREATE TABLE IF NOT EXISTS seconds (minute INTEGER NOT NULL, agent INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (minute, agent)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS minutes (hour INTEGER NOT NULL, agent INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (hour, agent)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, at INTEGER NOT NULL, agent TEXT, kind TEXT NOT NULL, severity INTEGER NOT NULL,
        text TEXT NOT NULL, code TEXT, hint TEXT);
    CREATE INDEX IF NOT EXISTS events_by_agent ON events (agent, id) WHERE agent IS NOT NULL;
    CREATE INDEX IF NOT EXISTS events_by_kind ON events (kind, id);
    CREATE INDEX IF NOT EXISTS events_by_severity ON events (severity, id) WHERE severity > 0;
    CREATE TABLE IF NOT EXISTS alerts (number INTEGER PRIMARY KEY, agent TEXT, state TEXT NOT NULL, last INTEGER NOT NULL, view TEXT NOT NULL);
    CREATE INDEX IF NOT EXISTS alerts_by_state ON alerts (state, number);
    CREATE TABLE IF NOT EXISTS silences (number INTEGER PRIMARY KEY, until INTEGER NOT NULL, view TEXT NOT NULL);
";

/// What a former life left.
#[derive(Default)]
pub(crate) struct Found {
    pub(super) agents: HashMap<AgentId, i64>,
    /// The number of the last event.
    pub(crate) last_event: u64,
    /// The latest time of anything.
    pub(crate) last_ms: u64,
    /// Everything before this second is folded.
    pub(crate) folded_until: u64,
    /// What was written down after it.
    pub(crate) journal: Vec<(AgentId, Shown, Point)>,
    /// Alerts that nobody has resolved.
    pub(crate) alerts: Vec<AlertView>,
    /// Silences, those that are over too.
    pub(crate) silences: Vec<SilenceView>,
    /// The number of the last alert.
    pub(crate) last_alert: u64,
    /// Where a damaged file was put.
    pub(crate) set_aside: Option<PathBuf>,
}

/// Settings and tables. A file of a later version is `InvalidQuery`.
pub(super) fn prepare(connection: &Connection) -> Result<(), rusqlite::Error> {
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version > VERSION {
        return Err(rusqlite::Error::InvalidQuery);
    }
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    // Readers and the writer don't wait for each other, and a second is lost to a power cut at most.
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "journal_size_limit", 16 << 20)?;
    connection.pragma_update(None, "cache_size", -8192)?;
    // What a damaged or foreign file defines is not run.
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.execute_batch(TABLES)?;
    connection.pragma_update(None, "user_version", VERSION)
}

pub(super) fn find(connection: &Connection) -> Result<Found, rusqlite::Error> {
    let mut found = Found::default();
    let mut numbers = HashMap::new();
    let mut agents = connection.prepare("SELECT number, id, name FROM agents")?;
    let mut rows = agents.query([])?;
    while let Some(row) = rows.next()? {
        let (number, id, name): (i64, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        if let Ok(id) = AgentId::new(id) {
            numbers.insert(number, (id.clone(), Shown::new(&name)));
            found.agents.insert(id, number);
        }
    }
    let number = |sql: &str| -> Result<u64, rusqlite::Error> {
        let value: Option<i64> = connection.query_row(sql, [], |row| row.get(0))?;
        Ok(unsigned(value.unwrap_or(0)))
    };
    found.folded_until = number("SELECT max(value) FROM facts WHERE name = 'folded_until'")?;
    found.last_event = number("SELECT max(id) FROM events")?;
    found.last_alert = number("SELECT max(number) FROM alerts")?;
    let last_event =
        number("SELECT max(at) FROM (SELECT at FROM events ORDER BY id DESC LIMIT 1)")?;
    found.last_ms = last_event.max(found.folded_until * 1000);
    let mut alerts =
        connection.prepare("SELECT view FROM alerts WHERE state <> 'resolved' ORDER BY number")?;
    for view in alerts.query_map([], |row| row.get::<_, String>(0))? {
        // One that can't be read was not written by us; the others still count.
        found
            .alerts
            .extend(serde_json::from_str::<AlertView>(&view?));
    }
    let mut silences = connection.prepare("SELECT view FROM silences ORDER BY number")?;
    for view in silences.query_map([], |row| row.get::<_, String>(0))? {
        found
            .silences
            .extend(serde_json::from_str::<SilenceView>(&view?));
    }
    let mut journal = connection.prepare("SELECT data FROM journal ORDER BY number")?;
    for data in journal.query_map([], |row| row.get::<_, Vec<u8>>(0))? {
        for (agent, point) in entries(&data?) {
            if let Some((id, name)) = numbers.get(&agent)
                && point.at >= found.folded_until
            {
                found.journal.push((id.clone(), name.clone(), point));
            }
        }
    }
    Ok(found)
}

/// What a row of the journal says, as far as it can be read.
fn entries(mut data: &[u8]) -> Vec<(i64, Point)> {
    let data = &mut data;
    let mut all = Vec::new();
    while !data.is_empty() {
        let head = (read_number(data), read_number(data));
        let (Ok(agent), Ok(length)) = head else {
            break;
        };
        let Some((chunk, rest)) = usize::try_from(length)
            .ok()
            .and_then(|length| data.split_at_checked(length))
        else {
            break;
        };
        *data = rest;
        let Ok(points) = decode(chunk) else { break };
        all.extend(
            points
                .into_iter()
                .map(|point| (super::signed(agent), point)),
        );
    }
    all
}
