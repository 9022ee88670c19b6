//! Tells people of alerts: a webhook, syslog, a command. It may take its time, so it has a thread of its own.

mod command;
mod syslog;
mod url;
mod webhook;

use std::time::Duration;

use belljar_api::AlertView;

pub(crate) use url::Url;

use crate::settings::NotifySettings;

/// How long one attempt may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long is waited before a webhook is tried again.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// Why somebody was not told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Untold {
    #[error("webhook: {0}")]
    Webhook(#[from] webhook::Refused),
    #[error("syslog: {0}")]
    Syslog(std::io::Error),
    #[error("command: {0}")]
    Command(#[from] command::Failed),
}

/// Tells everybody who is to be told. `pause` waits and says whether to go on.
pub(crate) fn tell(
    settings: &NotifySettings,
    alert: &AlertView,
    pause: impl Fn(Duration) -> bool,
) -> Vec<Untold> {
    let mut failures = Vec::new();
    let body = serde_json::json!({
        "host": host(),
        "alert": alert,
    })
    .to_string();
    if let Some(path) = &settings.syslog
        && let Err(error) = syslog::send(path, alert, PATIENCE)
    {
        failures.push(Untold::Syslog(error));
    }
    if let Some(url) = &settings.webhook
        && let Err(refused) = persist(url, &body, pause)
    {
        failures.push(refused.into());
    }
    if !settings.command.is_empty()
        && let Err(failed) = command::run(&settings.command, &body, PATIENCE)
    {
        failures.push(failed.into());
    }
    failures
}

fn persist(
    url: &str,
    body: &str,
    pause: impl Fn(Duration) -> bool,
) -> Result<(), webhook::Refused> {
    let mut pauses = PAUSES.iter();
    loop {
        match webhook::post(url, body, PATIENCE) {
            Err(refused) if refused.may_pass() => match pauses.next() {
                Some(time) if pause(*time) => {}
                _ => return Err(refused),
            },
            other => return other,
        }
    }
}

/// This host's name, as it calls itself.
fn host() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}
