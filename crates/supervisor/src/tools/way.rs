//! The servers of `mcp.servers` for a box: one socket in it, and this process on the other side.

use super::backstage::Backstage;
use super::listed::{Around, servers};
use super::record::recorder;
use super::tally::{Counted, Tally};
use crate::command::Command;
use crate::door::Door;
use crate::environment::{MCP_SOCKET, MCP_URL};
use crate::error::RunError;
use crate::manager::SandboxId;
use crate::network::answered_port;
use crate::reins::Reins;
use crate::state::StateDir;
use belljar_mcp::PolicyJudge;
use belljar_mcp::gateway::Limits;
use belljar_mcp::http::{Endpoint, Listening, Setup};
use belljar_policy::Capability;
use belljar_sandbox::show::{OWN_PLACE, ShowName};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// What the socket is called in the box.
const NAME: &str = "mcp.sock";

/// The way to a box's servers, as long as it is kept. Servers' boxes end with it.
#[derive(Debug)]
pub struct Way {
    /// Dropped first: it lets go of the servers.
    _endpoint: Endpoint,
    _door: Door,
    tally: Arc<Tally>,
}

/// Whose servers.
#[derive(Debug)]
pub struct Whose<'a> {
    /// The box they are for.
    pub id: &'a SandboxId,
    /// Where it works.
    pub work: &'a Path,
    /// What holds it: servers' boxes are in tow, and no call passes while it holds still.
    pub reins: &'a Reins,
}

impl Way {
    /// Opens the way, if the policy lists servers, and shows the box where it is.
    ///
    /// # Errors
    /// When a server can't be had, or this host has no room for a door.
    pub fn open(
        capability: &Capability,
        backstage: &Backstage,
        state: &StateDir,
        whose: &Whose<'_>,
        command: Command,
    ) -> Result<(Command, Option<Self>), RunError> {
        if capability.tools.all_servers().is_empty() {
            return Ok((command, None));
        }
        let id = whose.id.as_str();
        let around = Around {
            backstage,
            work: whose.work,
            state,
            agent: Some((id, whose.reins)),
        };
        let (servers, known): (_, Vec<_>) = servers(capability, around)?.into_iter().unzip();
        let tally = Arc::new(Tally::of(&known, state.path()).map_err(opening)?);
        let recorder = Counted::new(recorder(state, id), Arc::clone(&tally));
        let rules = Arc::new(capability.tools.clone());
        let judge = PolicyJudge::new(rules, known, state.path(), Box::new(recorder));
        let reins = whose.reins.clone();
        let judge = judge.map_err(opening)?.of_run(id);
        let judge = judge.paused_while(move || reins.is_held());
        let door = Door::open(state, &socket_name(id)?)?;
        let listener = door.listener().try_clone().map_err(opening)?;
        let setup = Setup {
            servers,
            judge: Arc::new(judge),
            limits: Limits::default(),
            hosts: Vec::new(),
        };
        let endpoint = Endpoint::start(setup, Listening::Unix(listener)).map_err(opening)?;
        let name = ShowName::new(NAME).map_err(|error| RunError::Invalid {
            what: error.to_string(),
            hint: String::new(),
        })?;
        let port = answered_port(capability);
        let inlet = endpoint.inlet();
        let command = command
            .env(MCP_URL, format!("http://127.0.0.1:{port}/mcp"))
            .answered(port, move |listener| inlet.open(Listening::Tcp(listener)))
            .env(MCP_SOCKET, format!("{OWN_PLACE}/{NAME}"))
            .show(door.show(name));
        let way = Self {
            _endpoint: endpoint,
            _door: door,
            tally,
        };
        Ok((command, Some(way)))
    }

    /// What was called so far.
    pub(crate) fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }
}

/// What the socket's file is called on the host: beside the door of the same box.
pub(crate) fn socket_name(id: &str) -> Result<SandboxId, RunError> {
    SandboxId::new(format!("{id}-mcp"))
}

fn opening(source: io::Error) -> RunError {
    RunError::System {
        doing: "opening the way to MCP servers",
        source,
    }
}
