//! What every box of a fleet is shown besides its capability: its door, ourselves, its papers, its state.

use std::sync::Arc;

use belljar_sandbox::show::{Show, ShowName};

use super::post::system;
use crate::command::Command;
use crate::door::Door;
use crate::error::RunError;

/// What one box is shown.
pub(crate) struct Shown<'a> {
    pub(crate) door: &'a Door,
    pub(crate) envelope: &'a [u8],
    pub(crate) chain: &'a [u8],
    pub(crate) state: Option<&'a [u8]>,
}

impl Shown<'_> {
    /// The command, with all that.
    pub(crate) fn to(&self, command: Command) -> Result<Command, RunError> {
        let name = |name: &str| {
            ShowName::new(name).map_err(|error| RunError::Invalid {
                what: error.to_string(),
                hint: String::new(),
            })
        };
        let own = std::env::current_exe().map_err(system("finding our own program"))?;
        let text = |at: &str, bytes: &[u8]| {
            Ok::<_, RunError>(Show::Text {
                name: name(at)?,
                bytes: Arc::from(bytes),
            })
        };
        let mut command = command
            .env(crate::environment::AGENT_SOCKET, "/belljar/agent.sock")
            .show(self.door.show(name("agent.sock")?))
            .show(Show::Program {
                name: name("bin/belljar")?,
                source: own,
            })
            .show(text("manifest.json", self.envelope)?)
            .show(text("chain.jsonl", self.chain)?);
        if let Some(state) = self.state {
            command = command.show(text("state", state)?);
        }
        Ok(command)
    }
}
