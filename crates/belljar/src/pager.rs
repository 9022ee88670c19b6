//! Much text for a person: through the pager that git would take, if somebody sits at a terminal.

use crate::print;
use belljar_sandbox::signals::SignalWatch;
use std::io::{IsTerminal as _, Write as _};
use std::process::{Child, Command, Stdio};

/// Where a long text goes.
pub(crate) struct PagedOutput {
    pager: Option<Child>,
    /// Ctrl-C is for the pager as long as it runs.
    _signals: Option<SignalWatch>,
    has_reader: bool,
    /// Whether it takes colours.
    pub(crate) colours: bool,
}

impl PagedOutput {
    /// Standard output, through a pager if that is `wanted` and it is a terminal.
    pub(crate) fn start(wanted: bool) -> Self {
        let pager = (wanted && std::io::stdout().is_terminal())
            .then(start_pager)
            .flatten();
        Self {
            _signals: pager.as_ref().and_then(|_| SignalWatch::new().ok()),
            pager,
            has_reader: true,
            colours: print::stdout_colours(),
        }
    }

    /// Writes text. Whatever went into it, a terminal gets lines, tabs and our colours. Says whether more is wanted.
    pub(crate) fn text(&mut self, text: &str) -> bool {
        let text = print::guarded(text);
        let pipe = self.pager.as_mut().map(|pager| pager.stdin.as_mut());
        self.has_reader = self.has_reader
            && match pipe {
                None => std::io::stdout().write_all(text.as_bytes()).is_ok(),
                Some(None) => false,
                Some(Some(pipe)) => pipe.write_all(text.as_bytes()).is_ok(),
            };
        self.has_reader
    }

    /// Text in a style, where it takes that.
    pub(crate) fn styled(&self, text: &str, code: &str) -> String {
        print::styled(text, code, self.colours)
    }
}

impl Drop for PagedOutput {
    fn drop(&mut self) {
        let _ = std::io::stdout().flush();
        if let Some(pager) = &mut self.pager {
            drop(pager.stdin.take());
            let _ = pager.wait();
        }
    }
}

/// `$PAGER`, as a shell reads it; `less` if it is not set. None if it is empty or `cat`.
fn start_pager() -> Option<Child> {
    let named = std::env::var_os("PAGER");
    let words = named.or_else(|| has_less().then(|| "less".into()))?;
    if words.is_empty() || words == "cat" {
        return None;
    }
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(words).stdin(Stdio::piped());
    // Ends by itself where all fits on the screen, obeys colours and nothing else, and leaves the text there.
    for (name, value) in [("LESS", "FRX"), ("LV", "-c")] {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    command.spawn().ok()
}

fn has_less() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join("less").is_file())
}
