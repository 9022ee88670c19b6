//! What is to run in a box: a program, where it starts, what it is given.

use crate::home::HomeRequest;
use belljar_sandbox::plan::Watch;
use belljar_sandbox::show::Show;
use std::ffi::OsString;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What to run, and where.
#[derive(Debug, Clone)]
pub struct Command {
    pub(crate) argv: Vec<OsString>,
    pub(crate) workdir: Option<PathBuf>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) shows: Vec<Show>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) watch: Watch,
    pub(crate) input: Option<Arc<[u8]>>,
    pub(crate) answered: Option<Answered>,
    pub(crate) home: HomeRequest,
    /// The working directory was found before, and what its name leads to elsewhere by now is not meant.
    pub(crate) is_settled: bool,
}

/// A port of a box's own loopback, and who takes its listener.
#[derive(Clone)]
pub(crate) struct Answered {
    port: u16,
    take: Arc<dyn Fn(TcpListener) + Send + Sync>,
}

impl Answered {
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Hands the listener over.
    pub(crate) fn begin(&self, listener: TcpListener) {
        (self.take)(listener);
    }
}

impl std::fmt::Debug for Answered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Answered({})", self.port)
    }
}

impl Command {
    /// A program and its arguments.
    pub fn new<S: Into<OsString>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            workdir: None,
            timeout: None,
            shows: Vec::new(),
            env: Vec::new(),
            watch: Watch::Nothing,
            input: None,
            answered: None,
            home: HomeRequest::OfProject,
            is_settled: false,
        }
    }

    /// Has it work in a directory that was found before, with no symbolic link in it: one that leads elsewhere by now is refused.
    #[must_use]
    pub(crate) fn settled_in(self, work: impl Into<PathBuf>) -> Self {
        Self {
            is_settled: true,
            ..self.workdir(work)
        }
    }

    /// Which private home it has, where its policy gives it one.
    #[must_use]
    pub fn home(mut self, request: HomeRequest) -> Self {
        self.home = request;
        self
    }

    /// What the program reads from its standard input, at most 32 KiB, where its output is captured. Once read it is gone: nothing
    /// else in the box can find it again, unlike what is shown.
    #[must_use]
    pub fn input(mut self, bytes: impl Into<Arc<[u8]>>) -> Self {
        self.input = Some(bytes.into());
        self
    }

    /// Has every file noted that the program names (see [`crate::RunResult::observed`]), which slows it down.
    #[must_use]
    pub fn watched(mut self) -> Self {
        self.watch = Watch::Files;
        self
    }

    /// Starts in this directory instead of the caller's.
    #[must_use]
    pub fn workdir(mut self, path: impl Into<PathBuf>) -> Self {
        self.workdir = Some(path.into());
        self
    }

    /// Ends after this long at the latest, whatever the capability says.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets a variable in the box, whatever the capability passes.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Has a port of the box's own loopback answered: when its walls stand, `take` gets the listener. Nothing outside the box
    /// can connect to it, and what the program says to it waits until then. See [`crate::answered_port`].
    #[must_use]
    pub fn answered(
        mut self,
        port: u16,
        take: impl Fn(TcpListener) + Send + Sync + 'static,
    ) -> Self {
        let take = Arc::new(take);
        self.answered = Some(Answered { port, take });
        self
    }

    /// Shows this to the program, below `/belljar`.
    #[must_use]
    pub fn show(mut self, show: Show) -> Self {
        self.shows.push(show);
        self
    }
}
