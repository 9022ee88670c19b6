//! Proposals, for operators that ask a daemon about them. It reads: deciding takes a reviewer's own key, which no server holds.

use std::path::PathBuf;

use belljar_api::{OperatorCall, Problem};
use belljar_evolve::review::Desk;
use belljar_evolve::review::page::{self, PageError};
use belljar_gate::in_full;
use belljar_supervisor::key_source;

use super::records::{now_ms, respond};

/// Reads proposals, as anybody could who may read the state directory.
pub(super) struct Proposals {
    state: PathBuf,
}

impl Proposals {
    pub(super) fn of(state: PathBuf) -> Self {
        Self { state }
    }

    /// Answers what is about proposals; gives back what is not.
    pub(super) fn answer(&self, call: OperatorCall) -> Option<OperatorCall> {
        let desk = Desk::of(&self.state, key_source());
        match call {
            OperatorCall::ListProposals(asked) => respond(asked, |_| {
                page::list(&self.state, &desk, now_ms()).map_err(|error| problem(&error))
            }),
            OperatorCall::ReadProposal(asked) => {
                let id = asked.target.clone();
                respond(asked, |_| {
                    let shown = page::detail(&self.state, &desk, id.as_str(), now_ms());
                    shown.map_err(|error| problem(&error))
                });
            }
            other => return Some(other),
        }
        None
    }
}

fn problem(error: &PageError) -> Problem {
    match error {
        PageError::Unknown => Problem::new("not_found", "there is no such proposal")
            .hint("`belljar evolve list` names them"),
        other => Problem::new("unreadable", in_full(other))
            .hint("see that the state directory can be read"),
    }
}
