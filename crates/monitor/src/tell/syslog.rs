//! One line as in RFC 5424, to a Unix socket.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use belljar_api::{AlertView, Severity};

/// System daemons.
const FACILITY: u8 = 3;

pub(crate) fn send(path: &Path, alert: &AlertView, patience: Duration) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(patience))?;
    socket.send_to(
        line(alert, &super::host(), std::process::id()).as_bytes(),
        path,
    )?;
    Ok(())
}

fn line(alert: &AlertView, host: &str, pid: u32) -> String {
    let severity = match alert.severity {
        Severity::Info => 6,
        Severity::Warning => 4,
        Severity::Critical => 2,
    };
    let agent = alert.agent.as_ref().map_or("-", |agent| agent.as_str());
    let name = alert.agent_name.as_ref().map_or("-", |name| name.as_str());
    format!(
        "<{}>1 {} {} belljar {pid} {:?} [belljar@32473 alert=\"{}\" agent=\"{agent}\" name=\"{}\" state=\"{}\" count=\"{}\"] {}",
        FACILITY * 8 + severity,
        crate::clock::utc(alert.last_at_ms),
        if host.is_empty() { "-" } else { host },
        alert.kind,
        alert.id,
        escaped(name),
        format!("{:?}", alert.state).to_lowercase(),
        alert.count,
        alert.text,
    )
}

/// A quote, a backslash and a closing bracket end a value unless they are escaped. Agents choose their names.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '"' | '\\' | ']') {
            safe.push('\\');
        }
        safe.push(c);
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_api::{AlertKind, AlertState, Shown};

    fn alert() -> AlertView {
        AlertView {
            id: crate::testing::id("7"),
            kind: AlertKind::NetworkAnomaly,
            severity: Severity::Critical,
            agent: Some(crate::testing::id("a1")),
            agent_name: Some(Shown::new("x\"] <0>1 forged")),
            text: Shown::new("169.254.169.254 refused\n<0>1 forged"),
            hint: None,
            state: AlertState::Open,
            opened_at_ms: 0,
            last_at_ms: 951_827_696_789,
            count: 3,
            by: None,
            reason: None,
            silenced: false,
            responses: Vec::new(),
        }
    }

    #[test]
    fn a_line_holds_the_alert_and_nothing_an_agent_could_add() {
        assert_eq!(
            line(&alert(), "box", 42),
            "<26>1 2000-02-29T12:34:56.789Z box belljar 42 NetworkAnomaly [belljar@32473 alert=\"7\" agent=\"a1\" \
             name=\"x\\\"\\] <0>1 forged\" state=\"open\" count=\"3\"] 169.254.169.254 refused\u{fffd}<0>1 forged"
        );
    }

    #[test]
    fn it_arrives_at_the_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(&path, &alert(), Duration::from_secs(60)).unwrap();
        let mut buffer = [0; 2048];
        let count = socket.recv(&mut buffer).unwrap();
        assert!(buffer[..count].starts_with(b"<26>1 2000-02-29T"));
        assert!(
            send(
                &directory.path().join("nobody"),
                &alert(),
                Duration::from_secs(60)
            )
            .is_err()
        );
    }
}
