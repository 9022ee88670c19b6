//! The server's own numbers.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::StatusCode;

/// What the server counts.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// Replies by the first digit of their status, from 1 to 5.
    replies: [AtomicU64; 5],
    failed_logins: AtomicU64,
}

impl Numbers {
    pub(super) fn replied(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100);
        if let Some(count) = class
            .checked_sub(1)
            .and_then(|class| self.replies.get(class))
        {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn login_failed(&self) {
        self.failed_logins.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds them to a text for Prometheus.
    pub(super) fn write(&self, text: &mut String, connections: usize, streams: usize) {
        text.push_str("# HELP belljar_web_replies_total Replies of the web server, by status.\n# TYPE belljar_web_replies_total counter\n");
        for (class, count) in self.replies.iter().enumerate() {
            let count = count.load(Ordering::Relaxed);
            let _ = writeln!(
                text,
                "belljar_web_replies_total{{status=\"{}xx\"}} {count}",
                class + 1
            );
        }
        let failed = self.failed_logins.load(Ordering::Relaxed);
        for (name, kind, help, value) in [
            (
                "failed_logins_total",
                "counter",
                "Logins that failed or were put off.",
                failed,
            ),
            (
                "connections",
                "gauge",
                "Connections that are open.",
                connections as u64,
            ),
            (
                "streams",
                "gauge",
                "Live streams that are open.",
                streams as u64,
            ),
        ] {
            let _ = writeln!(
                text,
                "# HELP belljar_web_{name} {help}\n# TYPE belljar_web_{name} {kind}\nbelljar_web_{name} {value}"
            );
        }
    }
}
