//! Questions to the file, through a connection that can't change it.

use std::path::Path;
use std::time::Duration;

use belljar_api::{
    AgentId, AlertQuery, AlertState, AlertView, EventQuery, EventView, Severity, Shown,
};
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params, params_from_iter};

use super::{signed, unsigned};
use crate::history::{Plan, Point, Tier, decode};

/// A reader of the file.
pub(crate) struct Reading(Connection);

impl Reading {
    pub(crate) fn open(directory: &Path) -> Result<Self, rusqlite::Error> {
        let connection = Connection::open_with_flags(
            directory.join("monitor.db"),
            OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )?;
        connection.busy_timeout(Duration::from_millis(500))?;
        connection.pragma_update(None, "trusted_schema", false)?;
        Ok(Self(connection))
    }

    /// Points of the plan's tier in its range, before the second from which on the memory knows better.
    pub(crate) fn points(
        &self,
        plan: &Plan,
        agent: Option<&AgentId>,
        before: u64,
    ) -> Result<Vec<Point>, rusqlite::Error> {
        let number: Option<i64> = match agent {
            None => Some(0),
            Some(id) => self
                .0
                .prepare_cached("SELECT number FROM agents WHERE id = ?1")?
                .query_row([id.as_str()], |row| row.get(0))
                .optional()?,
        };
        let Some(number) = number else {
            return Ok(Vec::new());
        };
        let (sql, length) = match plan.tier {
            Tier::Seconds => (
                "SELECT data FROM seconds WHERE minute = ?1 AND agent = ?2",
                60,
            ),
            Tier::Minutes => (
                "SELECT data FROM minutes WHERE hour = ?1 AND agent = ?2",
                3600,
            ),
        };
        let mut lookup = self.0.prepare_cached(sql)?;
        let (from, until) = (plan.from, plan.until.min(before));
        // What is older than anything in the file need not be looked up stretch by stretch.
        let first = self.first(plan.tier)?;
        let mut points = Vec::new();
        for chunk in (from / length).max(first)..until.div_ceil(length) {
            let data: Option<Vec<u8>> = lookup
                .query_row(params![signed(chunk), number], |row| row.get(0))
                .optional()?;
            // A chunk that can't be read is a gap.
            let stretch = data.and_then(|data| decode(&data).ok()).unwrap_or_default();
            let unit = plan.tier.seconds();
            points.extend(
                stretch
                    .into_iter()
                    .filter(|point| (from..until).contains(&(point.at * unit))),
            );
        }
        Ok(points)
    }

    fn first(&self, tier: Tier) -> Result<u64, rusqlite::Error> {
        let sql = match tier {
            Tier::Seconds => "SELECT min(minute) FROM seconds",
            Tier::Minutes => "SELECT min(hour) FROM minutes",
        };
        let first: Option<i64> = self
            .0
            .prepare_cached(sql)?
            .query_row([], |row| row.get(0))?;
        Ok(first.map_or(u64::MAX, unsigned))
    }

    /// Events with smaller numbers than `below`, the newest first.
    pub(crate) fn events(
        &self,
        query: &EventQuery,
        below: u64,
        limit: usize,
    ) -> Result<Vec<EventView>, rusqlite::Error> {
        let mut sql = String::from(
            "SELECT id, at, agent, kind, severity, text, code, hint FROM events WHERE id < ?1 AND id > ?2",
        );
        let mut values: Vec<Value> =
            vec![signed(below).into(), query.after.map_or(0, signed).into()];
        let mut also = |condition: &str, value: Value| {
            values.push(value);
            sql.push_str(&condition.replace('#', &format!("?{}", values.len())));
        };
        if let Some(agent) = &query.agent {
            also(" AND agent = #", agent.as_str().to_owned().into());
        }
        if let Some(kind) = query.kind {
            also(
                " AND kind = #",
                crate::events::kind_word(kind).to_owned().into(),
            );
        }
        if let Some(severity) = query.severity
            && severity > Severity::Info
        {
            also(" AND severity >= #", (severity as i64).into());
        }
        if let Some(search) = &query.search {
            also(
                " AND text LIKE # ESCAPE '\\'",
                pattern(search.as_str()).into(),
            );
        }
        also(" ORDER BY id DESC LIMIT #", signed(limit as u64).into());
        let mut statement = self.0.prepare_cached(&sql)?;
        let mut rows = statement.query(params_from_iter(values))?;
        let mut events = Vec::new();
        while let Some(row) = rows.next()? {
            let text = |column: usize| -> Result<Option<Shown>, rusqlite::Error> {
                let text: Option<String> = row.get(column)?;
                Ok(text.map(|text| Shown::new(&text)))
            };
            let kind: String = row.get(3)?;
            let agent: Option<String> = row.get(2)?;
            events.push(EventView {
                id: unsigned(row.get(0)?),
                at_ms: unsigned(row.get(1)?),
                agent: agent.and_then(|id| AgentId::new(id).ok()),
                // One that a later version knows and we don't is no reason to hide the others.
                kind: match crate::events::kind_of(&kind) {
                    Some(kind) => kind,
                    None => continue,
                },
                severity: match row.get::<_, i64>(4)? {
                    0 => Severity::Info,
                    1 => Severity::Warning,
                    _ => Severity::Critical,
                },
                text: text(5)?.unwrap_or_else(|| Shown::new("")),
                code: text(6)?,
                hint: text(7)?,
            });
        }
        Ok(events)
    }

    /// Resolved alerts, the newest first.
    pub(crate) fn resolved(
        &self,
        query: &AlertQuery,
        limit: usize,
    ) -> Result<Vec<AlertView>, rusqlite::Error> {
        let mut statement = self.0.prepare_cached(
            "SELECT view FROM alerts WHERE state = ?1 AND (?2 IS NULL OR agent = ?2) ORDER BY number DESC LIMIT ?3",
        )?;
        let views = statement.query_map(
            params![
                super::write::state_word(AlertState::Resolved),
                query.agent.as_ref().map(AgentId::as_str),
                signed(limit as u64)
            ],
            |row| row.get::<_, String>(0),
        )?;
        let mut alerts = Vec::new();
        for view in views {
            alerts.extend(serde_json::from_str::<AlertView>(&view?));
        }
        Ok(alerts)
    }
}

/// What is searched for, as LIKE takes it: nothing in it means anything but itself.
fn pattern(search: &str) -> String {
    let mut pattern = String::from("%");
    for c in search.chars() {
        if matches!(c, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('%');
    pattern
}
