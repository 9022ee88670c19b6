//! Finding the supervisor, and an agent by what people call it.

use std::path::PathBuf;

use belljar_api::{
    AgentId, AgentPhase, AgentView, CallError, Client, FleetQuery, ListAgents, OutputQuery,
    OutputReply, OutputStream, ReadOutput, Way,
};
use belljar_gate::in_full;
use belljar_supervisor::fleet::Operator;
use belljar_supervisor::{CA, CLIENT_CERT, CLIENT_KEY, SUPERVISOR, StateDir, TOKEN};
use belljar_web::{Credentials, Remote};

use super::PAUSE;
use crate::exit::Failure;

/// A supervisor that answers.
pub(crate) struct Reached {
    pub(crate) client: Client,
    /// The way to it is open as long as this is.
    _operator: Option<std::os::fd::OwnedFd>,
}

impl Reached {
    /// The one that the environment names, or that of the state directory.
    pub(crate) fn usual() -> Result<Self, Failure> {
        Self::usual_or(nobody)
    }

    /// The same; `nobody` says what is missing where nobody answers.
    pub(crate) fn usual_or(nobody: fn(CallError) -> Failure) -> Result<Self, Failure> {
        if let Some(reached) = Self::named() {
            return reached;
        }
        let operator = Operator::reach(&StateDir::existing()?).map_err(nobody)?;
        Ok(Self::of(operator))
    }

    /// The one of this machine.
    pub(crate) fn of(operator: Operator) -> Self {
        let (client, directory) = operator.into_parts();
        Self {
            client,
            _operator: Some(directory),
        }
    }

    /// The one that the environment names, if it does: then nothing on this machine is meant.
    pub(crate) fn named() -> Option<Result<Self, Failure>> {
        variable(SUPERVISOR).map(|url| Self::at(Some(&url)))
    }

    /// The one that was named, if one was.
    pub(super) fn at(url: Option<&str>) -> Result<Self, Failure> {
        let Some(url) = url.filter(|url| !url.is_empty()) else {
            return Self::usual();
        };
        let client = match url.strip_prefix("unix:") {
            Some(path) => Client::connect(path.trim_start_matches("//")).map_err(nobody)?,
            None => elsewhere(url)?,
        };
        Ok(Self {
            client,
            _operator: None,
        })
    }

    /// A part of an agent's output. Where many ask at once, it is asked again.
    pub(super) fn output(
        &mut self,
        agent: &AgentId,
        stream: OutputStream,
        from: u64,
    ) -> Result<OutputReply, Failure> {
        let query = OutputQuery {
            stream: Some(stream),
            from: Some(from),
            most: None,
        };
        loop {
            match self.client.call_on::<ReadOutput>(agent, &query) {
                Err(CallError::Refused { problem, .. }) if problem.code == "rate_limited" => {
                    std::thread::sleep(PAUSE);
                }
                other => return Ok(other?),
            }
        }
    }

    /// The agent with this name or id, or whose id begins like this. Whoever lives comes first.
    pub(super) fn find(&mut self, given: &str) -> Result<AgentView, Failure> {
        let query = FleetQuery { ended: Some(true) };
        let list = self.client.call::<ListAgents>(&query)?;
        let is_over = |agent: &&AgentView| agent.phase == AgentPhase::Ended;
        let named = |agent: &&AgentView| agent.name.as_str() == given;
        let begins = |agent: &&AgentView| !given.is_empty() && agent.id.as_str().starts_with(given);
        let all = || list.agents.iter();
        let mut ways = [
            all()
                .filter(named)
                .filter(|agent| !is_over(agent))
                .collect::<Vec<_>>(),
            all()
                .filter(begins)
                .filter(|agent| !is_over(agent))
                .collect(),
            // The latest of that name.
            all().rfind(named).into_iter().collect(),
            all().filter(begins).collect(),
        ]
        .into_iter();
        let found = ways.find(|found| !found.is_empty()).unwrap_or_default();
        match found.as_slice() {
            [one] => Ok((*one).clone()),
            several => Err(Failure::Invalid(
                match several.len() {
                    0 => format!("no agent is called {given:?}, nor begins its id like that"),
                    many => format!("{many} agents begin with {given:?}"),
                },
                "`belljar supervisor status --all` lists them".into(),
            )),
        }
    }
}

/// A supervisor that is reached by its web server, with a token.
fn elsewhere(url: &str) -> Result<Client, Failure> {
    let file = |name| variable(name).map(PathBuf::from);
    let credentials = Credentials {
        authorities: file(CA),
        own: file(CLIENT_CERT).zip(file(CLIENT_KEY)),
    };
    let remote = Remote::parse(url, &credentials, belljar_egress::host_roots)
        .map_err(|error| Failure::Invalid(in_full(&error), error.hint().into()))?;
    let token = variable(TOKEN).ok_or_else(|| {
        Failure::Invalid(
            format!("a supervisor at {url} wants a token"),
            format!("set {TOKEN} to one that `belljar token create` printed there"),
        )
    })?;
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Failure::Invalid(
            format!("{TOKEN} is no token"),
            "a token is one word without spaces".into(),
        ));
    }
    let host = remote.authority();
    let open = Box::new(move || remote.connect());
    let there = url.to_owned();
    Client::connect_by(Way { open, host, token }).map_err(|error| match error {
        CallError::NotThere { source, .. } => Failure::Invalid(
            format!("nobody answers at {there}: {source}"),
            "is its web server on, its certificate one that this host or BELLJAR_CA trusts, and no firewall between?".into(),
        ),
        other => other.into(),
    })
}

/// What the environment says; an empty variable is one that is not set.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn nobody(error: CallError) -> Failure {
    match error {
        CallError::NotThere { .. } => Failure::Invalid(
            "no supervisor runs here".into(),
            "`belljar supervisor start` starts one; BELLJAR_STATE_DIR says where to look".into(),
        ),
        other => other.into(),
    }
}
