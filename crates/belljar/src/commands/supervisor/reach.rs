//! Finding the supervisor, and an agent by what people call it.

use std::path::PathBuf;

use belljar_api::{
    AgentId, AgentPhase, AgentView, CallError, Client, EventQuery, FleetQuery, ListAgents,
    ListEvents, OutputQuery, OutputReply, OutputStream, ReadOutput, Way,
};
use belljar_gate::in_full;
use belljar_supervisor::fleet::Operator;
use belljar_supervisor::{CA, CLIENT_CERT, CLIENT_KEY, SUPERVISOR, StateDir, TOKEN};
use belljar_web::{Credentials, Remote};

use super::PAUSE;
use crate::exit::Failure;

/// Whether the environment names a supervisor.
pub(crate) fn is_named() -> bool {
    variable(SUPERVISOR).is_some()
}

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
    pub(crate) fn find(&mut self, given: &str) -> Result<AgentView, Failure> {
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

impl Reached {
    /// Whose past somebody asks about, the oldest first: every life that is remembered of the one who is called so; of an id that life
    /// alone; nobody in particular where nobody is named.
    pub(crate) fn lives_of(
        &mut self,
        given: Option<&str>,
    ) -> Result<Vec<Option<AgentId>>, Failure> {
        let Some(name) = given else {
            return Ok(vec![None]);
        };
        let query = FleetQuery { ended: Some(true) };
        let list = self.client.call::<ListAgents>(&query)?;
        let named = list.agents.into_iter();
        let named = named.filter(|agent| agent.name.as_str() == name);
        let mut lives: Vec<_> = named.map(|agent| Some(agent.id)).collect();
        if lives.is_empty() {
            return Ok(vec![self.id_of(given)?]);
        }
        let too_many = lives.len().saturating_sub(MOST_LIVES);
        lives.drain(..too_many);
        Ok(lives)
    }

    /// The id of an agent for questions about the past: an agent that lives or is remembered, by what people call it; a whole
    /// id of one that is forgotten, if anything is recorded about it.
    fn id_of(&mut self, given: Option<&str>) -> Result<Option<AgentId>, Failure> {
        let Some(given) = given else { return Ok(None) };
        let unknown = match self.find(given) {
            Ok(agent) => return Ok(Some(agent.id)),
            Err(unknown) => unknown,
        };
        let is_whole =
            given.len() == WHOLE_ID && given.bytes().all(|byte| byte.is_ascii_hexdigit());
        let Some(id) = AgentId::new(given).ok().filter(|_| is_whole) else {
            return Err(unknown);
        };
        let query = EventQuery {
            agent: Some(id.clone()),
            limit: Some(1),
            ..EventQuery::default()
        };
        match self.client.call::<ListEvents>(&query)?.events.is_empty() {
            true => Err(unknown),
            false => Ok(Some(id)),
        }
    }
}

/// Lives of one name that are asked about: the latest ones.
const MOST_LIVES: usize = 100;
/// Letters of a whole id.
const WHOLE_ID: usize = 32;

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
            match source.to_string().contains("CaUsedAsEndEntity") {
                true => SELF_SIGNED,
                false => "is its web server on, its certificate one that this host or BELLJAR_CA trusts, and no firewall between?",
            }
            .into(),
        ),
        other => other.into(),
    })
}

/// What `openssl req -x509` makes where nothing else is said.
const SELF_SIGNED: &str = "its certificate is marked as an authority's and can't be a server's as well: make one with \
    `openssl req -x509 -newkey ed25519 -nodes -keyout key.pem -out cert.pem -days 365 -subj /CN=HOST -addext subjectAltName=DNS:HOST \
    -addext basicConstraints=critical,CA:FALSE`, and name it in BELLJAR_CA here";

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
