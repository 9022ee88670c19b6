//! The keeper's process: what `belljar keeper` is. It is told its box over its standard input, which is a socket.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use belljar_egress::LlmBudget;
use belljar_gate::{Launch, Nonce, Permit};
use belljar_manifest::lineage::CapabilityDocument;
use belljar_policy::Capability;
use rustix::fs::{Mode, OFlags};

use super::board::{Board, Switchboard};
use super::disk::Disk;
use super::place::Keepers;
use super::wire::{Manner, Wire};
use super::words::{
    Breach, Ending, Failed, Legacy, Order, Purse, RefusedHost, Sample, Started, Task, VERSION, Word,
};
use crate::attend::{self, Asking, Assignment, Attendant, Facts, Leave, Output, Refusal, attend};
use crate::command::Command;
use crate::door::Door;
use crate::error::RunError;
use crate::fleet::{Shown, random, system};
use crate::home::HomeRequest;
use crate::manager::SandboxId;
use crate::reins::Reins;
use crate::result::{RunResult, Violation};
use crate::rotation::Rotated;
use crate::state::StateDir;
use crate::tools::{Tally, ToolCalls, Way, Whose};

/// How often a box's usage is told.
const LOOK: Duration = Duration::from_secs(1);
/// How long a daemon may take to put an end on record.
const PATIENCE: Duration = Duration::from_secs(30);

/// Keeps one box, as the daemon at the other end of standard input says, until nothing is left of it.
pub fn keep() -> Result<(), RunError> {
    let wire = take_input()?;
    // Out of the reach of the terminal and the process group of whoever started us.
    rustix::process::setsid().map_err(RunError::system("making a session"))?;
    let _ = rustix::process::chdir("/");
    let _ = crate::raise_descriptor_limit();
    let order = wire
        .receive::<Order>()
        .map_err(system("hearing what to keep"))?;
    let Some((Order::Keep(task), _)) = order else {
        return Err(RunError::Invalid {
            what: "a keeper is started by its supervisor, not by hand".into(),
            hint: "`belljar supervisor start` starts one".into(),
        });
    };
    if task.v != VERSION {
        return Err(RunError::Invalid {
            what: "the supervisor is of another version".into(),
            hint: "restart it".into(),
        });
    }
    let state = StateDir::at(task.state_dir.clone())?;
    let keepers = Keepers::of(&state)?;
    let board = Arc::new(Board::new().map_err(system("making the switchboard"))?);
    let outcome = keep_task(&task, &state, &keepers, &board, wire);
    let end = match &outcome.result {
        Ok(result) => Ok(Ending {
            unspent: outcome.budget.as_deref().map(Purse::left_in),
            ..Ending::from(result)
        }),
        Err(error) => Err(Failed::from(error)),
    };
    let legacy = Legacy {
        task: (*task).clone(),
        at_ms: belljar_gate::clock::now().wall_ms,
        end: end.clone(),
    };
    // Before anybody is told: whoever hears of the end and dies has a successor.
    let _ = keepers.leave(&legacy);
    board.say(match end {
        Ok(ending) => Word::Ended(Box::new(ending)),
        Err(failed) => Word::Failed(failed),
    });
    board.await_done(PATIENCE);
    board.close();
    if let Some(thread) = outcome.switchboard {
        let _ = thread.join();
    }
    Ok(())
}

/// Standard input, which is nobody else's: the box must not have it.
fn take_input() -> Result<Wire, RunError> {
    let input = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)
        .map_err(RunError::system("taking the supervisor's socket"))?;
    let nothing = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(RunError::system("opening /dev/null"))?;
    rustix::stdio::dup2_stdin(&nothing).map_err(RunError::system("closing standard input"))?;
    Wire::new(UnixStream::from(input)).map_err(|source| RunError::Invalid {
        what: format!("standard input is not the supervisor's socket: {source}"),
        hint: "`belljar supervisor start` starts keepers; nobody else needs to".into(),
    })
}

struct Outcome {
    result: Result<RunResult, RunError>,
    switchboard: Option<std::thread::JoinHandle<()>>,
    budget: Option<Arc<LlmBudget>>,
}

fn keep_task(
    task: &Task,
    state: &StateDir,
    keepers: &Keepers,
    board: &Arc<Board>,
    wire: Wire,
) -> Outcome {
    let spare = wire.try_clone();
    let prepared = prepare(task, state, keepers, board, wire);
    let (kept, thread) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            // There is no switchboard to say it.
            if let Ok(wire) = spare {
                let failed = Word::Failed(Failed::from(&error));
                let _ = wire.send(&failed, None, Manner::Patient);
            }
            return Outcome {
                result: Err(error),
                switchboard: None,
                budget: None,
            };
        }
    };
    let budget = Arc::clone(&kept.budget);
    Outcome {
        result: kept.attend(task, state, board),
        switchboard: Some(thread),
        budget: Some(budget),
    }
}

/// Everything that a box's thread needs.
struct Kept {
    id: SandboxId,
    document: CapabilityDocument,
    command: Command,
    reins: Reins,
    budget: Arc<LlmBudget>,
    output: Output,
    /// To its MCP servers, if it has any: their boxes end with it.
    way: Option<Way>,
    /// Its file goes when nothing is left of the box.
    _door: Arc<Door>,
}

fn prepare(
    task: &Task,
    state: &StateDir,
    keepers: &Keepers,
    board: &Arc<Board>,
    wire: Wire,
) -> Result<(Kept, std::thread::JoinHandle<()>), RunError> {
    let id = SandboxId::new(task.worker.clone())?;
    let document =
        CapabilityDocument::parse(&task.capability).map_err(|error| RunError::Invalid {
            what: error.to_string(),
            hint: "the supervisor is of another version: restart it".into(),
        })?;
    let listening = keepers
        .listen(&task.worker)
        .map_err(system("opening the keeper's socket"))?;
    let door = Arc::new(Door::open(state, &id)?);
    let shown = Shown {
        door: &door,
        envelope: task.envelope.as_bytes(),
        chain: task.chain.as_bytes(),
        state: task.state.as_deref().map(str::as_bytes),
    };
    // A replica's name is no name: it would find the home of nobody.
    let is_replica = task.chain.lines().count() > 1;
    let home = match is_replica {
        true => HomeRequest::OfItsOwn,
        false => HomeRequest::OfAgent(task.card.name.clone()),
    };
    let command = Command::new(task.argv.clone())
        .settled_in(task.workdir.clone())
        .home(home);
    let command = shown.to(command)?;
    let budget = task.purse.open(&document.capability().limits);
    let plan = &task.output;
    let stream = |stem| {
        Rotated::begin(&plan.directory, stem, plan.most_bytes, plan.keep)
            .map_err(system("opening the files for its output"))
    };
    let output = Output::Rotated {
        stdout: stream("stdout")?,
        stderr: stream("stderr")?,
    };
    let reins = Reins::new()?;
    let whose = Whose {
        id: &id,
        work: &task.workdir,
        reins: &reins,
    };
    let capability = document.capability();
    let (command, way) = Way::open(capability, &task.backstage, state, &whose, command)?;
    let switchboard = Switchboard {
        board: Arc::clone(board),
        task: task.clone(),
        reins: reins.clone(),
        budget: Arc::clone(&budget),
        door: Arc::clone(&door),
        listening,
        daemon: Some(wire),
        alone: None,
        stop_by: None,
        is_quarantined: false,
        freezes: 0,
        is_seen_still: false,
        parts: HashMap::new(),
    };
    board.attended();
    let thread = std::thread::Builder::new()
        .name("belljar-board".to_owned())
        .spawn(move || switchboard.work())
        .map_err(system("starting the switchboard"))?;
    let kept = Kept {
        id,
        document,
        command,
        reins,
        budget,
        output,
        way,
        _door: door,
    };
    Ok((kept, thread))
}

impl Kept {
    fn attend(self, task: &Task, state: &StateDir, board: &Board) -> Result<RunResult, RunError> {
        let mut capability: Capability = self.document.capability().clone();
        capability.confine_to(&task.own);
        let assignment = Assignment::new(&self.id, &capability, &self.command, state)
            .output(self.output)
            .reins(self.reins)
            .budget(self.budget);
        let digest = self.document.digest().to_string();
        let mut ask = |asking: &Asking<'_>| ask_leave(task, &digest, asking, board);
        let mut teller = Teller {
            board,
            disk: Disk::default(),
            tally: self.way.as_ref().map(|way| Arc::clone(way.tally())),
            told: Vec::new(),
        };
        let result = attend(assignment, Leave::Asked(&mut ask), &mut teller);
        // What is still under way is over now, and counted.
        drop(self.way);
        teller.tell_tools();
        result
    }
}

/// Asks the daemon's gate. What comes back is good for this box and this once.
fn ask_leave(
    task: &Task,
    digest: &str,
    asking: &Asking<'_>,
    board: &Board,
) -> Result<Permit<Launch>, Refusal> {
    let refusal = |what: String| Refusal {
        code: "deny_permit",
        what,
        hint: "start the agent again".into(),
    };
    let bytes = random().map_err(|error| refusal(error.to_string()))?;
    let nonce = bytes.to_ne_bytes();
    board.say(Word::Ready {
        nonce,
        program: Box::new(asking.program()),
    });
    let crossing = board
        .await_leave()
        .ok_or_else(|| refusal("the supervisor went away before it gave leave".to_owned()))?;
    let awaited = Launch {
        run: task.worker.clone(),
        program: task.argv.first().cloned().unwrap_or_default(),
        command_sha256: String::new(),
        capability: String::new(),
        capability_sha256: digest.to_owned(),
        tier: String::new(),
        image: asking.image.cloned(),
    };
    crossing
        .land(Nonce::of(nonce), awaited)
        .map_err(|error| refusal(error.to_string()))
}

/// Tells the daemon how the box fares.
struct Teller<'a> {
    board: &'a Board,
    disk: Disk,
    tally: Option<Arc<Tally>>,
    /// What was last told of it.
    told: Vec<ToolCalls>,
}

impl Teller<'_> {
    fn tell_tools(&mut self) {
        let counts = self.tally.as_ref().map(|tally| tally.counts());
        let counts = counts.unwrap_or_default();
        if counts != self.told {
            self.told.clone_from(&counts);
            self.board.say(Word::Tools(counts));
        }
    }
}

impl Attendant for Teller<'_> {
    fn started(&mut self, facts: &Facts<'_>) {
        self.disk = Disk::of(facts.pid);
        self.board.say(Word::Started(Started {
            pid: facts.pid,
            image: facts.image.cloned(),
            limits_by: facts.limits_by.to_owned(),
        }));
    }

    fn look_every(&self) -> Option<Duration> {
        Some(LOOK)
    }

    fn looked(&mut self, usage: &attend::Usage) {
        let (read_bytes, written_bytes) = self.disk.look();
        self.board.say(Word::Sample(Sample {
            read_bytes,
            written_bytes,
            ..Sample::from(usage)
        }));
        self.tell_tools();
    }

    fn violated(&mut self, violation: &Violation) {
        self.board.say(Word::Violated(Breach::from(violation)));
    }

    fn refused(&mut self, refusal: &belljar_egress::Refusal) {
        self.board.say(Word::Refused(refusal.into()));
    }

    fn refused_again(&mut self, refusal: &belljar_egress::Refusal, count: u64) {
        let refused = RefusedHost::from(refusal).again(count);
        self.board.say(Word::Refused(refused));
    }
}
