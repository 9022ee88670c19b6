//! Finding the supervisor, and an agent by what people call it.

use belljar_api::{
    AgentId, AgentPhase, AgentView, CallError, Client, FleetQuery, ListAgents, OutputQuery,
    OutputReply, OutputStream, ReadOutput,
};
use belljar_supervisor::StateDir;
use belljar_supervisor::fleet::Operator;

use super::PAUSE;
use crate::exit::Failure;

/// A supervisor that answers.
pub(super) struct Reached {
    pub(super) client: Client,
    /// The way to it is open as long as this is.
    _operator: Option<std::os::fd::OwnedFd>,
}

impl Reached {
    /// The one of the state directory.
    pub(super) fn usual() -> Result<Self, Failure> {
        let operator = Operator::reach(&StateDir::find()?).map_err(nobody)?;
        let (client, directory) = operator.into_parts();
        Ok(Self {
            client,
            _operator: Some(directory),
        })
    }

    /// The one that was named, if one was.
    pub(super) fn at(url: Option<&str>) -> Result<Self, Failure> {
        let Some(url) = url.filter(|url| !url.is_empty()) else {
            return Self::usual();
        };
        if let Some(path) = url.strip_prefix("unix:") {
            let client = Client::connect(path.trim_start_matches("//")).map_err(nobody)?;
            return Ok(Self {
                client,
                _operator: None,
            });
        }
        let what = match url.split_once("://") {
            Some((scheme @ ("http" | "https"), _)) => {
                format!("a supervisor can't be reached by {scheme} from here")
            }
            _ => format!("{url} is no place of a supervisor"),
        };
        Err(Failure::Invalid(
            what,
            "name its socket: --supervisor unix:PATH, or leave it out for the one of BELLJAR_STATE_DIR".into(),
        ))
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

fn nobody(error: CallError) -> Failure {
    match error {
        CallError::NotThere { .. } => Failure::Invalid(
            "no supervisor runs here".into(),
            "`belljar supervisor start` starts one; BELLJAR_STATE_DIR says where to look".into(),
        ),
        other => other.into(),
    }
}
