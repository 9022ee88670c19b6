//! Tells a supervisor of the same state directory, if there is one, what was put on record. It is told after the fact
//! and never waited for: the record is what counts, and nobody may listen.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::private_files::make_directory;
use crate::record::McpEvent;

/// The most bytes of one piece of news.
const LONGEST: usize = 16 << 10;

/// What happened, and in whose run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct News {
    /// The run.
    pub run: String,
    /// What happened; of a call, without its arguments.
    pub event: McpEvent,
}

fn socket(state: &Path) -> PathBuf {
    state.join("mcp").join("news.sock")
}

/// Whoever tells.
#[derive(Debug)]
pub struct Teller {
    socket: io::Result<UnixDatagram>,
    place: PathBuf,
    run: String,
}

impl Teller {
    /// Tells of this run to whoever listens in this state directory.
    #[must_use]
    pub fn new(state: &Path, run: &str) -> Self {
        let socket_of = || {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        Self {
            socket: socket_of(),
            place: socket(state),
            run: run.to_owned(),
        }
    }

    /// Tells, if somebody listens and has room for it. Calls that were let through are nothing new.
    pub fn tell(&self, event: &McpEvent) {
        let mut event = event.clone();
        match &mut event {
            McpEvent::Call { verdict, .. } if verdict == "allow" => return,
            McpEvent::Call { arguments, .. } => *arguments = Value::Null,
            _ => {}
        }
        let run = self.run.clone();
        if let (Ok(socket), Ok(bytes)) = (&self.socket, serde_json::to_vec(&News { run, event })) {
            // Nobody there, or nobody quick enough: it is on record all the same.
            let _ = socket.send_to(&bytes, &self.place);
        }
    }
}

/// Whoever listens: one of a state directory.
#[derive(Debug)]
pub struct Listener {
    socket: UnixDatagram,
}

impl Listener {
    /// Listens in this state directory; whoever did before does no longer.
    ///
    /// # Errors
    /// When there can be no socket.
    pub fn bind(state: &Path, patience: Duration) -> io::Result<Self> {
        make_directory(&state.join("mcp"))?;
        let place = socket(state);
        match std::fs::remove_file(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = UnixDatagram::bind(&place)?;
        socket.set_read_timeout(Some(patience))?;
        Ok(Self { socket })
    }

    /// The next news; `None` when none came for as long as was said, or it makes no sense.
    #[must_use]
    pub fn next(&self) -> Option<News> {
        let mut bytes = vec![0; LONGEST];
        let read = self.socket.recv(&mut bytes).ok()?;
        serde_json::from_slice(bytes.get(..read)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_hears_what_is_new_and_who_tells_needs_no_listener() {
        let scratch = tempfile::tempdir().unwrap();
        let held = McpEvent::Held {
            id: "1".to_owned(),
            server: "s".to_owned(),
            tool: "t".to_owned(),
            code: "hold_tool".to_owned(),
            rule: "f:1".to_owned(),
        };
        let call = |verdict: &str, arguments: Value| McpEvent::Call {
            server: "s".to_owned(),
            tool: "t".to_owned(),
            verdict: verdict.to_owned(),
            code: None,
            rule: None,
            duration_us: 1,
            result_bytes: 1,
            is_error: false,
            arguments,
        };
        let teller = Teller::new(scratch.path(), "run");
        teller.tell(&held);
        let listener = Listener::bind(scratch.path(), Duration::from_secs(60)).unwrap();
        teller.tell(&call("allow", Value::Null));
        teller.tell(&call("deny", Value::from("long")));
        teller.tell(&held);
        let heard = [listener.next().unwrap(), listener.next().unwrap()];
        assert_eq!(heard.each_ref().map(|news| news.run.as_str()), ["run"; 2]);
        assert_eq!(
            heard.map(|news| news.event),
            [call("deny", Value::Null), held]
        );
    }
}
