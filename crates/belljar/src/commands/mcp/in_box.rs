//! The servers of `mcp.servers` for a box: one socket in it, and this process on the other side.

use super::listed;
use super::wrap::system;
use crate::exit::Failure;
use belljar_mcp::PolicyJudge;
use belljar_mcp::gateway::Limits;
use belljar_mcp::http::{Endpoint, Listening, Setup};
use belljar_policy::Capability;
use belljar_sandbox::signals::SignalWatch;
use belljar_supervisor::{
    Command, Door, MCP_SOCKET, MCP_URL, OWN_PLACE, SandboxId, ShowName, StateDir, answered_port,
};
use std::path::Path;
use std::sync::Arc;

/// What the socket is called in the box.
const NAME: &str = "mcp.sock";

/// The way to a box's servers, as long as it is kept.
pub(crate) struct Way {
    _endpoint: Endpoint,
    _door: Door,
    /// Taken before there were threads; the keeper hears them.
    _signals: SignalWatch,
}

/// Opens the way, if the policy lists servers, and shows the box where it is.
pub(crate) fn open(
    capability: &Capability,
    config: Option<&Path>,
    state: &StateDir,
    id: &SandboxId,
    command: Command,
) -> Result<(Command, Option<Way>), Failure> {
    if capability.tools.all_servers().is_empty() {
        return Ok((command, None));
    }
    let signals = SignalWatch::new().map_err(|errno| system("watching signals", errno.into()))?;
    let (servers, known) = listed::servers(capability, config, state)?
        .into_iter()
        .unzip();
    let recorder = super::record::recorder(state, &id.to_string());
    let rules = Arc::new(capability.tools.clone());
    let judge = PolicyJudge::new(rules, known, state.path(), recorder)
        .map_err(|source| system("opening the state directory", source))?
        .of_run(&id.to_string());
    let door = Door::open(state, id)?;
    let listener = door.listener().try_clone();
    let listener = listener.map_err(|source| system("opening the way to MCP servers", source))?;
    let setup = Setup {
        servers,
        judge: Arc::new(judge),
        limits: Limits::default(),
        hosts: Vec::new(),
    };
    let endpoint = Endpoint::start(setup, Listening::Unix(listener))
        .map_err(|source| system("opening the way to MCP servers", source))?;
    let name =
        ShowName::new(NAME).map_err(|error| super::invalid(&error.to_string(), "a defect"))?;
    let port = answered_port(capability);
    let inlet = endpoint.inlet();
    let command = command
        .env(MCP_URL, format!("http://127.0.0.1:{port}/mcp"))
        .answered(port, move |listener| inlet.open(Listening::Tcp(listener)))
        .env(MCP_SOCKET, format!("{OWN_PLACE}/{NAME}"))
        .show(door.show(name));
    let way = Way {
        _endpoint: endpoint,
        _door: door,
        _signals: signals,
    };
    Ok((command, Some(way)))
}
