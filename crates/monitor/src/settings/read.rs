//! Reads the two tables of supervisor.toml that are ours, and says what is wrong with them and where.

use std::time::Duration;

use belljar_api::{AlertKind, Response, Severity};
use toml::de::{DeTable, DeValue};

use super::place::{Given, Place};
use super::{AlertSettings, MonitorSettings, NotifySettings, Settings};
use crate::alerts::{KINDS, Nature, is_about_an_agent, may_say_when_over, nature};
use crate::tell::Url;

const DAY: u64 = 86_400;

/// Settings that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {path}: {message}")]
pub struct InvalidSettings {
    /// Where in the document, such as `supervisor.alerts.rules[0].kind`.
    pub path: String,
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Settings {
    /// Reads the text of a supervisor.toml. Other tables are others' business.
    pub fn read(text: &str) -> Result<Self, InvalidSettings> {
        let document = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            Place {
                text,
                path: String::new(),
            }
            .wrong(at, error.message(), None)
        })?;
        let mut settings = Self::default();
        let Some(supervisor) = document.get_ref().get("supervisor") else {
            return Ok(settings);
        };
        let place = Place {
            text,
            path: "supervisor".into(),
        };
        let supervisor = place.table(supervisor)?;
        if let Some(table) = supervisor.get("monitor") {
            monitor(&place.of("monitor"), table, &mut settings.monitor)?;
        }
        if let Some(table) = supervisor.get("alerts") {
            alerts(&place.of("alerts"), table, &mut settings.alerts)?;
        }
        Ok(settings)
    }
}

fn monitor(
    place: &Place<'_>,
    given: &Given<'_>,
    settings: &mut MonitorSettings,
) -> Result<(), InvalidSettings> {
    const KNOWN: &[&str] = &[
        "seconds_kept_hours",
        "minutes_kept_days",
        "events_kept_days",
        "most_events",
        "incidents_kept",
        "most_incident_mb",
    ];
    for (key, value, place) in place.entries(given, KNOWN)? {
        match key {
            "seconds_kept_hours" => {
                settings.seconds_kept =
                    Duration::from_secs(3600 * place.number(value, 1..=24 * 31)?)
            }
            "minutes_kept_days" => {
                settings.minutes_kept = Duration::from_secs(DAY * place.number(value, 1..=3650)?)
            }
            "events_kept_days" => {
                settings.events_kept = Duration::from_secs(DAY * place.number(value, 1..=3650)?)
            }
            "most_events" => settings.most_events = place.number(value, 1_000..=100_000_000)?,
            "incidents_kept" => settings.incidents_kept = place.number(value, 1..=100_000)?,
            _ => settings.most_incident_bytes = place.number(value, 1..=4096)? << 20,
        }
    }
    Ok(())
}

fn alerts(
    place: &Place<'_>,
    given: &Given<'_>,
    settings: &mut AlertSettings,
) -> Result<(), InvalidSettings> {
    const KNOWN: &[&str] = &["max_cpu_percent", "max_memory_mb", "rules", "notify"];
    for (key, value, place) in place.entries(given, KNOWN)? {
        match key {
            "max_cpu_percent" => settings.max_cpu_percent = place.percent(value)?,
            "max_memory_mb" => settings.max_memory_mb = Some(place.number(value, 1..=1 << 40)?),
            "rules" => rules(&place, value, settings)?,
            _ => notify(&place, value, &mut settings.notify)?,
        }
    }
    Ok(())
}

fn rules(
    place: &Place<'_>,
    given: &Given<'_>,
    settings: &mut AlertSettings,
) -> Result<(), InvalidSettings> {
    let mut seen: Vec<AlertKind> = Vec::new();
    for (index, given) in place.array(given)?.iter().enumerate() {
        let place = place.item(index);
        let kind = rule(&place, given, settings)?;
        if seen.contains(&kind) {
            let message = format!("there is a rule for {kind:?} already");
            return Err(place.wrong(
                given.span().start,
                &message,
                Some("one rule for each kind".into()),
            ));
        }
        seen.push(kind);
    }
    Ok(())
}

fn rule(
    place: &Place<'_>,
    given: &Given<'_>,
    settings: &mut AlertSettings,
) -> Result<AlertKind, InvalidSettings> {
    const KNOWN: &[&str] = &[
        "kind",
        "threshold",
        "window_seconds",
        "for_seconds",
        "resolve_after_seconds",
        "severity",
        "respond",
        "enabled",
    ];
    let entries = place.entries(given, KNOWN)?;
    let Some((_, value, at)) = entries.iter().find(|(key, ..)| *key == "kind") else {
        return Err(place.wrong(given.span().start, "`kind` is missing", Some(kinds())));
    };
    let words: Vec<(String, AlertKind)> = KINDS
        .iter()
        .map(|kind| (format!("{kind:?}"), *kind))
        .collect();
    let kind = at.one_of(value, &words)?;
    let Some(rule) = settings.rules.iter_mut().find(|rule| rule.kind == kind) else {
        return Err(at.wrong(value.span().start, "there is no such alert", Some(kinds())));
    };
    for (key, value, place) in entries {
        match key {
            "threshold" if kind == AlertKind::HighResourceUsage => {
                settings.max_cpu_percent = place.percent(value)?;
            }
            "threshold" | "window_seconds" if nature(kind) == Nature::Level => {
                let message = format!("it means nothing for {kind:?}, which is so or is not");
                let hint = "`for_seconds` says how long it must have been so".to_owned();
                return Err(place.wrong(value.span().start, &message, Some(hint)));
            }
            "threshold" => rule.threshold = place.number(value, 1..=100_000)?,
            "window_seconds" => rule.window = Duration::from_secs(place.number(value, 1..=DAY)?),
            "for_seconds" => rule.lasting = Duration::from_secs(place.number(value, 0..=DAY)?),
            "resolve_after_seconds" if !may_say_when_over(kind) => {
                let message = format!("{kind:?} is over when it is no longer so");
                return Err(place.wrong(value.span().start, &message, None));
            }
            "resolve_after_seconds" => {
                let seconds = place.number(value, 0..=30 * DAY)?;
                rule.resolve_after = Some(Duration::from_secs(seconds));
            }
            "severity" => {
                let words = [
                    ("info", Severity::Info),
                    ("warning", Severity::Warning),
                    ("critical", Severity::Critical),
                ];
                rule.severity = place.one_of(value, &words)?;
            }
            "enabled" => rule.enabled = place.truth(value)?,
            "respond" => rule.respond = responses(&place, value, kind)?,
            _ => {}
        }
    }
    Ok(kind)
}

fn responses(
    place: &Place<'_>,
    given: &Given<'_>,
    kind: AlertKind,
) -> Result<Vec<Response>, InvalidSettings> {
    let words = [
        ("notify", Response::Notify),
        ("freeze", Response::Freeze),
        ("quarantine", Response::Quarantine),
        ("kill", Response::Kill),
        ("kill_subtree", Response::KillSubtree),
    ];
    let mut all = Vec::new();
    for (index, value) in place.array(given)?.iter().enumerate() {
        let place = place.item(index);
        let response = place.one_of(value, &words)?;
        if response != Response::Notify && !is_about_an_agent(kind) {
            let hint = "`notify` is all that can be done".to_owned();
            return Err(place.wrong(
                value.span().start,
                &format!("{kind:?} is about no agent"),
                Some(hint),
            ));
        }
        if !all.contains(&response) {
            all.push(response);
        }
    }
    Ok(all)
}

fn notify(
    place: &Place<'_>,
    given: &Given<'_>,
    settings: &mut NotifySettings,
) -> Result<(), InvalidSettings> {
    for (key, value, place) in place.entries(given, &["webhook", "syslog", "command"])? {
        let at = value.span().start;
        match key {
            "webhook" => {
                let text = place.text(value)?;
                Url::parse(&text).map_err(|why| {
                    place.wrong(
                        at,
                        &why.to_string(),
                        Some("such as \"https://hooks.example.com/belljar\"".into()),
                    )
                })?;
                settings.webhook = Some(text);
            }
            "syslog" => {
                settings.syslog = match value.get_ref() {
                    DeValue::Boolean(on) => on.then(|| "/dev/log".into()),
                    DeValue::String(path) if path.starts_with('/') => Some(path.as_ref().into()),
                    _ => {
                        return Err(place.wrong(
                            at,
                            "true, false or the path of a socket belongs here",
                            None,
                        ));
                    }
                };
            }
            _ => {
                let mut words = Vec::new();
                for (index, word) in place.array(value)?.iter().enumerate() {
                    words.push(place.item(index).text(word)?);
                }
                let is_absolute = words
                    .first()
                    .is_some_and(|program| program.starts_with('/'));
                if !is_absolute || words.iter().any(|word| word.contains('\0')) {
                    let hint = "such as [\"/usr/local/bin/page\", \"--team\", \"agents\"]; no shell reads it".to_owned();
                    return Err(place.wrong(
                        at,
                        "a program's absolute path and its arguments belong here",
                        Some(hint),
                    ));
                }
                settings.command = words;
            }
        }
    }
    Ok(())
}

fn kinds() -> String {
    let names: Vec<String> = KINDS.iter().map(|kind| format!("{kind:?}")).collect();
    format!("known kinds: {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(settings: &Settings, kind: AlertKind) -> &crate::Rule {
        settings
            .alerts
            .rules
            .iter()
            .find(|rule| rule.kind == kind)
            .unwrap()
    }

    #[test]
    fn the_seeds_file_is_read_and_others_tables_are_left_alone() {
        let text = "[supervisor]\nmax_agents = 10\nweb_port = 8080\n[supervisor.alerts]\nmax_cpu_percent = 80.0\nmax_memory_mb = 512\n[other]\nx = 1\n";
        let settings = Settings::read(text).unwrap();
        assert_eq!(settings.alerts.max_memory_mb, Some(512));
        assert_eq!(settings.alerts.rules, AlertSettings::default().rules);
        assert_eq!(Settings::read(""), Ok(Settings::default()));
    }

    #[test]
    fn a_rule_changes_what_it_names_and_leaves_the_rest() {
        let text = r#"
            [supervisor.monitor]
            seconds_kept_hours = 2
            [[supervisor.alerts.rules]]
            kind = "NetworkAnomaly"
            threshold = 3
            window_seconds = 10
            for_seconds = 5
            resolve_after_seconds = 0
            severity = "critical"
            respond = ["notify", "freeze", "kill_subtree"]
            [[supervisor.alerts.rules]]
            kind = "AgentCrashed"
            enabled = false
            [supervisor.alerts.notify]
            webhook = "http://127.0.0.1:9/x"
            syslog = true
            command = ["/bin/true", "a b"]
        "#;
        let settings = Settings::read(text).unwrap();
        assert_eq!(settings.monitor.seconds_kept, Duration::from_secs(7200));
        let network = rule(&settings, AlertKind::NetworkAnomaly);
        assert_eq!(
            (
                network.threshold,
                network.window.as_secs(),
                network.lasting.as_secs()
            ),
            (3, 10, 5)
        );
        assert_eq!(
            network.respond,
            [Response::Notify, Response::Freeze, Response::KillSubtree]
        );
        assert_eq!(crate::alerts::over(network), crate::alerts::Over::ByAPerson);
        assert!(!rule(&settings, AlertKind::AgentCrashed).enabled);
        assert_eq!(settings.alerts.notify.command, ["/bin/true", "a b"]);
        assert_eq!(
            settings.alerts.notify.syslog.as_deref(),
            Some("/dev/log".as_ref())
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place_and_a_hint() {
        let cases = [
            (
                "[supervisor.alerts]\nmax_cpu_precent = 1",
                "line 2, column 1: supervisor.alerts.max_cpu_precent: there is no such key",
                "did you mean `max_cpu_percent`?",
            ),
            (
                "[supervisor.alerts]\nmax_cpu_percent = 101",
                "line 2, column 19: supervisor.alerts.max_cpu_percent: a number above 0",
                "percent of what",
            ),
            (
                "[[supervisor.alerts.rules]]\nkind = \"NetworkAnomoly\"",
                "line 2, column 8: supervisor.alerts.rules[0].kind: \"NetworkAnomoly\"",
                "did you mean `NetworkAnomaly`?",
            ),
            (
                "[[supervisor.alerts.rules]]\nthreshold = 1",
                "supervisor.alerts.rules[0]: `kind` is missing",
                "known kinds: HighResourceUsage",
            ),
            (
                "[[supervisor.alerts.rules]]\nkind = \"LedgerFailure\"\nrespond = [\"notify\", \"kill\"]",
                "line 3, column 22: supervisor.alerts.rules[0].respond[1]: LedgerFailure is about no agent",
                "notify",
            ),
            (
                "[[supervisor.alerts.rules]]\nkind = \"AgentCrashed\"\nrespond = [\"frieze\"]",
                "\"frieze\" is not known here",
                "did you mean `freeze`?",
            ),
            (
                "[[supervisor.alerts.rules]]\nkind = \"AgentCrashed\"\n[[supervisor.alerts.rules]]\nkind = \"AgentCrashed\"",
                "there is a rule for AgentCrashed already",
                "one rule",
            ),
            (
                "[[supervisor.alerts.rules]]\nkind = \"KillSwitchEngaged\"\nthreshold = 2",
                "line 3, column 13: supervisor.alerts.rules[0].threshold: it means nothing for KillSwitchEngaged",
                "for_seconds",
            ),
            (
                "[[supervisor.alerts.rules]]\nkind = \"BudgetExceeded\"\nresolve_after_seconds = 2",
                "resolve_after_seconds: BudgetExceeded is over when it is no longer so",
                "",
            ),
            (
                "[supervisor.alerts.notify]\nwebhook = \"ftp://x\"",
                "supervisor.alerts.notify.webhook",
                "https://",
            ),
            (
                "[supervisor.alerts.notify]\ncommand = [\"page\"]",
                "absolute path",
                "no shell",
            ),
            (
                "[supervisor.monitor]\nmost_events = -1",
                "a whole number from 1000",
                "",
            ),
            ("[supervisor.alerts", "line 1", ""),
            ("supervisor = 1", "supervisor: a table belongs here", ""),
        ];
        for (text, message, hint) in cases {
            let error = Settings::read(text).unwrap_err();
            assert!(error.to_string().contains(message), "{text}: {error}");
            assert!(error.hint.unwrap_or_default().contains(hint), "{text}");
        }
    }
}
