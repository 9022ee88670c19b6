//! Calls of MCP tools that wait for an operator: whoever holds them wrote them into the state directory.

use belljar_api::{HoldAnswerRequest, HoldId, HoldList, HoldView, Problem, Shown, Status};
use belljar_mcp::holds::{Answer, AnswerError, Hold, Holds};

use super::Inner;
use crate::fleet::{Refused, act_by};

impl Inner {
    pub(super) fn holds(&self) -> Result<HoldList, Refused> {
        let holds = self.hold_store()?.list().map_err(unusable)?;
        Ok(HoldList {
            holds: holds.iter().filter_map(view).collect(),
        })
    }

    /// On record before it counts.
    pub(super) fn answer_hold(
        &self,
        by: &str,
        id: &HoldId,
        request: &HoldAnswerRequest,
    ) -> Result<HoldView, Refused> {
        let store = self.hold_store()?;
        let holds = store.list().map_err(unusable)?;
        let waits = holds.iter().find(|hold| hold.id.as_str() == id.as_str());
        let hold = waits.ok_or_else(no_such)?;
        let shown = view(hold).ok_or_else(no_such)?;
        let name = if request.allow {
            "allow_held_call"
        } else {
            "refuse_held_call"
        };
        let act = act_by(by, request.reason.as_str());
        self.post().gate.note_act(name, None, act)?;
        let answer = Answer {
            allow: request.allow,
            by: by.to_owned(),
            reason: request.reason.as_str().to_owned(),
        };
        match store.answer(&hold.id, &answer) {
            Ok(_) => Ok(shown),
            Err(AnswerError::NoSuchHold) => Err(no_such()),
            Err(AnswerError::Answered) => Err(Refused(
                Status::CONFLICT,
                Problem::new("answered", "the call is answered already"),
            )),
            Err(AnswerError::Store(source)) => Err(unusable(source)),
        }
    }

    fn hold_store(&self) -> Result<Holds, Refused> {
        Holds::open(self.post().state.path()).map_err(unusable)
    }
}

fn view(hold: &Hold) -> Option<HoldView> {
    Some(HoldView {
        id: HoldId::new(hold.id.as_str()).ok()?,
        run: Shown::new(&hold.run),
        server: Shown::new(&hold.server),
        tool: Shown::new(&hold.tool),
        arguments: Shown::new(&hold.arguments.to_string()),
        code: Shown::new(&hold.code),
        rule: Shown::new(&hold.rule),
        opened_at_ms: hold.opened_ms,
        deadline_ms: hold.deadline_ms,
    })
}

fn no_such() -> Refused {
    let problem = Problem::new("not_found", "no call waits under this id");
    Refused(
        Status::NOT_FOUND,
        problem.hint("`belljar mcp holds` lists the calls that wait"),
    )
}

fn unusable(source: std::io::Error) -> Refused {
    let problem = Problem::new("no_holds", format!("the holds can't be used: {source}"));
    Refused(Status::UNAVAILABLE, problem)
}
