//! Metrics, events and alerts as people read them.

use std::fmt::Write as _;

use belljar_api::{
    AlertState, AlertView, EventView, MetricsReply, Name, Sample, Severity, SilenceView,
};

use crate::print::{harmless, styled, utc};

/// Bars of a sparkline.
const WIDTH: usize = 48;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// One line for each number: a sparkline, the mean or sum, the most.
pub(super) fn metrics(reply: &MetricsReply) -> String {
    let (Some(first), Some(last)) = (reply.samples.first(), reply.samples.last()) else {
        return "nothing was recorded in that time\n".into();
    };
    let mut text = format!(
        "{} to {}, every {}\n",
        utc(first.at_ms),
        utc(last.at_ms + reply.every_ms),
        seconds(reply.every_ms)
    );
    let _ = writeln!(
        text,
        "{:10}  {:WIDTH$}  {:>11}  {:>11}",
        "", "", "MEAN", "MOST"
    );
    type Read = fn(&Sample) -> f64;
    type Write = fn(f64) -> String;
    let rows: [(&str, Read, Write); 7] = [
        ("cpu", |s| s.cpu_percent, |v| format!("{v:.1} %")),
        ("memory", |s| s.memory_bytes as f64, bytes),
        ("processes", |s| s.processes as f64, |v| format!("{v:.0}")),
        ("read", |s| s.read_rate, rate),
        ("written", |s| s.write_rate, rate),
        ("sent", |s| s.send_rate, rate),
        ("received", |s| s.receive_rate, rate),
    ];
    for (name, read, write) in rows {
        let values: Vec<f64> = reply.samples.iter().map(read).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let most = values.iter().copied().fold(0.0, f64::max);
        let _ = writeln!(
            text,
            "{name:10}  {}  {:>11}  {:>11}",
            sparkline(&values, most),
            write(mean),
            write(most)
        );
    }
    let tokens: u64 = reply.samples.iter().map(|sample| sample.tokens).sum();
    let cost: u64 = reply.samples.iter().map(|sample| sample.micro_usd).sum();
    let _ = writeln!(text, "{tokens} tokens, {:.4} USD", cost as f64 / 1e6);
    text
}

/// As wide as a terminal likes, each bar the most of its part of the time.
fn sparkline(values: &[f64], most: f64) -> String {
    let count = values.len().min(WIDTH);
    let mut line = String::new();
    for bar in 0..count {
        let part = &values[bar * values.len() / count..(bar + 1) * values.len() / count];
        let value = part.iter().copied().fold(0.0, f64::max);
        let height = if most > 0.0 { value / most } else { 0.0 };
        // Nothing is the lowest bar, and the most the highest.
        line.push(BARS[((height * 7.0).ceil() as usize).min(7)]);
    }
    line.extend(std::iter::repeat_n(' ', WIDTH - count));
    line
}

pub(super) fn event(event: &EventView, colours: bool) -> String {
    let kind = serde_json::to_value(event.kind).unwrap_or_default();
    let agent = event.agent.as_ref().map_or("-", |agent| agent.as_str());
    let mut line = format!(
        "{}  {}  {agent:.8}  {:20}  {}",
        utc(event.at_ms),
        severity(event.severity, colours),
        kind.as_str().unwrap_or_default(),
        harmless(event.text.as_str())
    );
    if let Some(hint) = &event.hint {
        let _ = write!(line, "  ({})", harmless(hint.as_str()));
    }
    line
}

pub(super) fn alerts(alerts: &[AlertView], colours: bool) -> String {
    if alerts.is_empty() {
        return "nothing needs attention\n".into();
    }
    let mut text = String::new();
    for alert in alerts {
        let about = match (&alert.agent, &alert.agent_name) {
            (Some(id), Some(name)) => format!("  {} ({:.8})", harmless(name.as_str()), id.as_str()),
            (Some(id), None) => format!("  {id}"),
            (None, _) => String::new(),
        };
        let _ = writeln!(
            text,
            "{:>4}  {}  {:?}{about}  {}, {} times, since {}",
            alert.id.as_str(),
            severity(alert.severity, colours),
            alert.kind,
            state_word(alert.state),
            alert.count,
            utc(alert.opened_at_ms)
        );
        let _ = writeln!(text, "      {}", harmless(alert.text.as_str()));
        if let Some(by) = &alert.by {
            let reason = alert.reason.as_ref().map_or("", |reason| reason.as_str());
            let colon = if reason.is_empty() { "" } else { ": " };
            let (by, reason) = (harmless(by.as_str()), harmless(reason));
            let _ = writeln!(text, "      by {by}{colon}{reason}");
        }
        if alert.silenced && alert.state != AlertState::Resolved {
            text.push_str("      silenced: nobody is told\n");
        }
        for taken in &alert.responses {
            let response = serde_json::to_value(taken.response).unwrap_or_default();
            let how = match &taken.failed {
                Some(why) => format!("failed: {}", harmless(why.as_str())),
                None => "done".into(),
            };
            let _ = writeln!(
                text,
                "      {}: {how}",
                response.as_str().unwrap_or_default()
            );
        }
        if let (Some(hint), true) = (&alert.hint, alert.state != AlertState::Resolved) {
            let _ = writeln!(text, "      hint: {}", harmless(hint.as_str()));
        }
    }
    text
}

pub(super) fn silences(silences: &[SilenceView]) -> String {
    if silences.is_empty() {
        return "nothing is silenced\n".into();
    }
    let mut text = String::new();
    for silence in silences {
        let who = silence.agent.as_ref().map_or("everybody", Name::as_str);
        let what = silence
            .kind
            .map_or("any alert".to_owned(), |kind| format!("{kind:?}"));
        let _ = writeln!(
            text,
            "{:>4}  {what} about {}  until {}  by {}: {}",
            silence.id.as_str(),
            harmless(who),
            utc(silence.until_ms),
            harmless(silence.by.as_str()),
            harmless(silence.reason.as_str())
        );
    }
    text
}

pub(super) fn state_word(state: AlertState) -> &'static str {
    match state {
        AlertState::Open => "open",
        AlertState::Acknowledged => "acknowledged",
        AlertState::Resolved => "resolved",
    }
}

fn severity(severity: Severity, colours: bool) -> String {
    match severity {
        Severity::Info => "info    ".into(),
        Severity::Warning => styled("warning ", "33", colours),
        Severity::Critical => styled("critical", "1;31", colours),
    }
}

pub(super) fn bytes(number: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut number, mut unit) = (number, 0);
    while number >= 1024.0 && unit + 1 < UNITS.len() {
        number /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{number:.0} B"),
        _ => format!("{number:.1} {}", UNITS[unit]),
    }
}

fn rate(number: f64) -> String {
    format!("{}/s", bytes(number))
}

fn seconds(ms: u64) -> String {
    match ms / 1000 {
        seconds @ ..60 => format!("{seconds} s"),
        seconds => format!("{} min", seconds / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_shows_the_shape() {
        assert_eq!(sparkline(&[0.0, 1.0, 4.0, 8.0], 8.0).trim_end(), "▁▂▅█");
        assert_eq!(sparkline(&[0.0; 100], 0.0), "▁".repeat(WIDTH));
        assert_eq!(sparkline(&[], 0.0), " ".repeat(WIDTH));
        let peak: Vec<f64> = (0..1000)
            .map(|n| if n == 500 { 9.0 } else { 0.0 })
            .collect();
        assert_eq!(
            sparkline(&peak, 9.0).matches('█').count(),
            1,
            "a peak is not lost"
        );
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes(1023.0), "1023 B");
        assert_eq!(bytes(1536.0), "1.5 KiB");
        assert_eq!(bytes(f64::from(1 << 30)), "1.0 GiB");
    }
}
