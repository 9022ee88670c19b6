//! `belljar monitor …`: what a supervisor's agents used and did, asked over the operator's socket.

mod show;
mod top;

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use belljar_api::{
    AcknowledgeAlert, AlertList, AlertQuery, AlertState, Because, CreateSilence, Empty, EndSilence,
    EventList, EventQuery, ListAlerts, ListEvents, ListSilences, MetricsQuery, MetricsReply, Name,
    ReadMetrics, ResolveAlert, ResolveAlerts, ResolveAlertsRequest, SilenceRequest,
};

use super::agent::said;
use super::supervisor::Reached;
use crate::cli::monitor::{Answer, Events, Monitor, Resolve, Silence, Whose};
use crate::cli::{LogName, OutputFormat};
use crate::exit::{self, Failure};
use crate::print::{self, Line, Stream};

/// How often `events --follow` looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Events that one look takes at most.
const AT_ONCE: u64 = 1_000;

pub(crate) fn monitor(command: Monitor) -> Result<u8, Failure> {
    match command {
        Monitor::Metrics {
            whose,
            since,
            format,
        } => {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            let mut reached = Reached::usual()?;
            let mut query = MetricsQuery {
                since_ms: u64::try_from(now.saturating_sub(since).as_millis()).ok(),
                until_ms: u64::try_from(now.as_millis()).ok(),
                ..MetricsQuery::default()
            };
            let mut reply = MetricsReply::default();
            for life in reached.lives_of(whose.agent_id.as_deref())? {
                query.agent = life;
                let part = reached.client.call::<ReadMetrics>(&query)?;
                reply.every_ms = reply.every_ms.max(part.every_ms);
                reply.samples.extend(part.samples);
            }
            reply.samples.sort_by_key(|sample| sample.at_ms);
            tell(format.output, &reply, || show::metrics(&reply));
            Ok(exit::OK)
        }
        Monitor::Events(asked) => events(asked),
        Monitor::Alerts {
            answer: Some(answer),
            ..
        } => answer_alert(answer),
        Monitor::Alerts {
            answer: None,
            all,
            whose,
            format,
        } => alerts(all, whose, format.output),
        Monitor::Silence(asked) => silence(asked),
        Monitor::Silences(format) => {
            let list = Reached::usual()?.client.call::<ListSilences>(&Empty {})?;
            tell(format.output, &list, || show::silences(&list.silences));
            Ok(exit::OK)
        }
        Monitor::Audit { export, log } => audit(&export, log.log),
        Monitor::Top(format) => top::top(&mut Reached::usual()?, format.output),
    }
}

fn events(asked: Events) -> Result<u8, Failure> {
    let mut operator = Reached::usual()?;
    let search = asked.search.map(Name::new).transpose().map_err(|error| {
        Failure::Invalid(
            format!("that can't be searched for: {error}"),
            "one line of at most 128 bytes".into(),
        )
    })?;
    let mut query = EventQuery {
        kind: asked.kind,
        search,
        limit: Some(asked.lines),
        ..EventQuery::default()
    };
    let mut stream = Stream::new();
    loop {
        let mut list = EventList::default();
        for life in operator.lives_of(asked.whose.agent_id.as_deref())? {
            query.agent = life;
            let part = operator.client.call::<ListEvents>(&query)?;
            list.events.extend(part.events);
        }
        list.events.sort_by_key(|event| std::cmp::Reverse(event.id));
        if query.after.is_none() {
            list.events
                .truncate(usize::try_from(asked.lines).unwrap_or(usize::MAX));
        }
        if !asked.follow && asked.format.output == OutputFormat::Json {
            print::json(&list);
            return Ok(exit::OK);
        }
        // A terminal is read downwards: the newest comes last.
        list.events.reverse();
        for event in &list.events {
            let line = match asked.format.output {
                OutputFormat::Json => serde_json::to_string(event).unwrap_or_default(),
                OutputFormat::Text => show::event(event, print::stdout_colours()),
            };
            stream.line(line.as_bytes());
        }
        if !stream.flush() || !asked.follow || !stream.wait(LOOK_EVERY) {
            return Ok(exit::OK);
        }
        let last = list.events.last().map(|event| event.id);
        query.after = last.or(query.after).or(Some(0));
        query.limit = Some(AT_ONCE);
    }
}

fn alerts(all: bool, whose: Whose, output: OutputFormat) -> Result<u8, Failure> {
    let mut operator = Reached::usual()?;
    let states = [None, Some(AlertState::Resolved)];
    let mut list = AlertList::default();
    for life in operator.lives_of(whose.agent_id.as_deref())? {
        for state in states.iter().take(if all { 2 } else { 1 }) {
            let query = AlertQuery {
                agent: life.clone(),
                state: *state,
                ..AlertQuery::default()
            };
            list.alerts
                .extend(operator.client.call::<ListAlerts>(&query)?.alerts);
        }
    }
    let number = |id: &str| id.parse::<u64>().unwrap_or(0);
    list.alerts
        .sort_by_key(|alert| std::cmp::Reverse(number(alert.id.as_str())));
    list.alerts.dedup_by(|one, other| one.id == other.id);
    tell(output, &list, || {
        show::alerts(&list.alerts, print::stdout_colours())
    });
    Ok(exit::OK)
}

fn answer_alert(answer: Answer) -> Result<u8, Failure> {
    let mut operator = Reached::usual()?;
    let (alert, output) = match answer {
        Answer::Ack { id, reason, format } => {
            let because = Because {
                reason: said(reason)?,
            };
            let alert = operator.client.call_on::<AcknowledgeAlert>(&id, &because)?;
            (alert, format.output)
        }
        Answer::Resolve(Resolve {
            id: Some(id),
            reason,
            format,
            ..
        }) => {
            let because = Because {
                reason: said(reason)?,
            };
            let alert = operator.client.call_on::<ResolveAlert>(&id, &because)?;
            (alert, format.output)
        }
        Answer::Resolve(many) => return resolve_all(&mut operator, many),
    };
    tell(output, &alert, || {
        format!(
            "alert {} ({:?}) is {}\n",
            alert.id,
            alert.kind,
            show::state_word(alert.state)
        )
    });
    Ok(exit::OK)
}

fn resolve_all(operator: &mut Reached, many: Resolve) -> Result<u8, Failure> {
    let request = ResolveAlertsRequest {
        agent: many.agent.map(pattern).transpose()?,
        kind: many.kind,
        all: many.all,
        reason: said(many.reason)?,
    };
    let done = operator.client.call::<ResolveAlerts>(&request)?;
    tell(many.format.output, &done, || {
        format!("{} alerts are resolved\n", done.resolved.len())
    });
    Ok(exit::OK)
}

fn silence(asked: Silence) -> Result<u8, Failure> {
    let mut operator = Reached::usual()?;
    let reason = said(asked.reason)?;
    if let Some(id) = asked.end {
        let ended = operator
            .client
            .call_on::<EndSilence>(&id, &Because { reason })?;
        tell(asked.format.output, &ended, || {
            format!("silence {} has ended\n", ended.id)
        });
        return Ok(exit::OK);
    }
    let lasts = asked.lasts.unwrap_or_default().as_millis();
    let request = SilenceRequest {
        agent: asked.agent.map(pattern).transpose()?,
        kind: asked.kind,
        for_ms: u64::try_from(lasts).unwrap_or(u64::MAX),
        reason,
    };
    let made = operator.client.call::<CreateSilence>(&request)?;
    tell(asked.format.output, &made, || {
        show::silences(std::slice::from_ref(&made))
    });
    Ok(exit::OK)
}

fn pattern(text: String) -> Result<Name, Failure> {
    Name::new(text).map_err(|error| {
        let what = format!("that can't be an agent's name: {error}");
        Failure::Invalid(what, "one line of at most 128 bytes".into())
    })
}

/// The whole log in one file, there as a whole or not at all.
fn audit(path: &Path, log: LogName) -> Result<u8, Failure> {
    let count = if path == Path::new("-") {
        super::audit::export_to(log, &mut std::io::stdout().lock())?
    } else {
        let unwritable = |error: std::io::Error| {
            Failure::Invalid(
                format!("{}: {error}", path.display()),
                "name a file in a directory that you can write".into(),
            )
        };
        let mut half = path.as_os_str().to_owned();
        half.push(format!(".{}.half", std::process::id()));
        let half = Path::new(&half);
        let file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(half)
            .map_err(unwritable)?;
        let mut out = BufWriter::new(file);
        let written = super::audit::export_to(log, &mut out).and_then(|count| {
            out.flush().map_err(unwritable)?;
            out.get_ref().sync_all().map_err(unwritable)?;
            std::fs::rename(half, path).map_err(unwritable)?;
            Ok(count)
        });
        if written.is_err() {
            // What is left of it is no use to anybody.
            let _gone = std::fs::remove_file(half);
        }
        written?
    };
    let text = match count {
        Some(count) => format!("{count} entries written"),
        None => "there is no log yet; nothing to write".into(),
    };
    print::line(Line::Note, &text);
    Ok(exit::OK)
}

fn tell(format: OutputFormat, value: &impl serde::Serialize, text: impl FnOnce() -> String) {
    match format {
        OutputFormat::Json => print::json(value),
        OutputFormat::Text => print::out(&text()),
    }
}
