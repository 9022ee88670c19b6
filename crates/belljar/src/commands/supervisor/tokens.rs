//! Tokens that can't be read keep everybody out: whoever runs the daemon hears of it before somebody wonders.

use std::path::Path;

use belljar_api::{EventKind, NewEvent, Severity, Shown};
use belljar_gate::in_full;
use belljar_monitor::Monitor;
use belljar_web::TokenFile;

use crate::print::{self, Line};

/// What was last found of the file.
pub(super) struct TokenTrouble {
    file: TokenFile,
    told: Option<String>,
}

impl TokenTrouble {
    pub(super) fn of(state: &Path) -> Self {
        Self {
            file: TokenFile::of(state),
            told: None,
        }
    }

    /// Looks, and tells what is not as it was.
    pub(super) fn look(&mut self, monitor: &Monitor) {
        let found = self.file.list().err();
        let trouble = found.map(|error| in_full(&error));
        if trouble == self.told {
            return;
        }
        let (severity, text) = match &trouble {
            Some(why) => (
                Severity::Critical,
                format!("no token is good, because they can't be read: {why}"),
            ),
            None => (Severity::Info, "the tokens can be read again".to_owned()),
        };
        print::line(Line::Error, &text);
        monitor.happened(NewEvent {
            agent: None,
            kind: EventKind::Daemon,
            severity,
            text: Shown::new(&text),
            code: trouble.as_ref().map(|_| Shown::new("tokens_unreadable")),
            hint: trouble.as_ref().map(|_| {
                Shown::new("restore web/tokens.json, or move it aside and make new tokens: belljar token create")
            }),
        });
        self.told = trouble;
    }
}
