//! What a daemon and a keeper say to each other.

use std::path::PathBuf;
use std::sync::Arc;

use belljar_egress::{LlmBudget, PicoUsd};
use belljar_gate::Crossing;
use belljar_gate::record::{NetworkUsed, ProgramRecord, UsedImage};
use belljar_policy::{Budget, Limits};
use serde::{Deserialize, Serialize};

use crate::result::RunResult;
use crate::tools::{Backstage, ServerFiles, ToolCalls};

/// The version of all this. A keeper of another one is not adopted.
pub(crate) const VERSION: u32 = 1;

/// A box to keep: the first thing a keeper hears. It holds it for as long as it lives, so that whoever adopts it knows all.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Task {
    pub(crate) v: u32,
    /// Whose box.
    pub(crate) worker: String,
    /// Where state lives.
    pub(crate) state_dir: PathBuf,
    /// The manifest.
    pub(crate) envelope: String,
    /// The manifests from the root's to this one's, one a line.
    pub(crate) chain: String,
    /// The capability, as it stands in the manifest.
    pub(crate) capability: String,
    pub(crate) argv: Vec<String>,
    pub(crate) workdir: PathBuf,
    /// What it finds in /belljar/state.
    pub(crate) state: Option<String>,
    /// What its box may hold.
    pub(crate) own: Budget,
    /// What it may spend on models.
    pub(crate) purse: Purse,
    /// Where its output goes.
    pub(crate) output: OutputPlan,
    /// How long it may go on without a daemon.
    pub(crate) orphan_grace_ms: u64,
    pub(crate) started_at_ms: u64,
    /// The daemon's own notes.
    pub(crate) card: Card,
    /// What its MCP servers are given and it is not shown.
    #[serde(default)]
    pub(crate) backstage: Backstage,
}

/// What may be spent on models; none is without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Purse {
    pub(crate) tokens: Option<u64>,
    pub(crate) pico_usd: Option<u64>,
}

impl Purse {
    /// What is left in a budget.
    pub(crate) fn left_in(budget: &LlmBudget) -> Self {
        let (tokens, cost) = budget.left();
        Self {
            tokens,
            pico_usd: cost.map(|PicoUsd(pico)| pico),
        }
    }

    /// What was granted.
    pub(crate) fn of(granted: &Budget) -> Self {
        let cost = granted.micro_usd.number().map(PicoUsd::from_micro_usd);
        Self {
            tokens: granted.tokens.number(),
            pico_usd: cost.map(|PicoUsd(pico)| pico),
        }
    }

    /// A budget of this much, with what a box may use by itself.
    pub(crate) fn open(self, limits: &Limits) -> Arc<LlmBudget> {
        let budget = LlmBudget::new(self.tokens, self.cost());
        budget.cap(limits.tokens, limits.cost_usd.map(PicoUsd::from_usd));
        budget
    }

    /// A part of a budget, at most this much.
    pub(crate) fn carve_from(self, budget: &Arc<LlmBudget>) -> Arc<LlmBudget> {
        budget.carve(self.tokens, self.cost())
    }

    fn cost(self) -> Option<PicoUsd> {
        self.pico_usd.map(PicoUsd)
    }
}

/// Where output goes, and how much of it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutputPlan {
    pub(crate) directory: PathBuf,
    pub(crate) most_bytes: u64,
    pub(crate) keep: usize,
}

/// What a daemon wants to know of an agent again after a restart.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Card {
    /// What people call it.
    pub(crate) name: String,
    /// What happens when it ends by itself.
    pub(crate) restart: belljar_api::RestartPolicy,
    /// Whether it is started again when it ran out of memory, where that is said.
    #[serde(default)]
    pub(crate) restart_on_oom: Option<bool>,
    /// How often it was started again.
    pub(crate) restarts: u32,
    /// When it was started again lately, in milliseconds on the boot clock.
    pub(crate) recent_ms: Vec<u64>,
    /// The text of its capability file, where one was given.
    pub(crate) capability: Option<String>,
    /// The profile, where one was named.
    pub(crate) profile: Option<String>,
    /// Files that it must not change.
    pub(crate) protected: Vec<PathBuf>,
    /// The capability files of its MCP servers.
    #[serde(default)]
    pub(crate) servers: ServerFiles,
}

/// What a daemon says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Keep this box.
    Keep(Box<Task>),
    /// Let its program run.
    Go(Crossing),
    Kill {
        code: String,
    },
    Freeze,
    Thaw,
    /// Ask it to end; kill it when it has not after the grace.
    Stop {
        grace_ms: u64,
    },
    /// It reported this as spent on models.
    Charge {
        tokens: u64,
        micro_usd: u64,
    },
    /// Set this much aside for a replica.
    Carve {
        child: String,
        wanted: Purse,
    },
    /// A replica has ended and left this.
    GiveBack {
        child: String,
        unspent: Purse,
    },
    /// Its end was heard.
    Done,
}

/// What a keeper says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Word {
    /// The walls go up, and it wants leave; its door comes along.
    Ready {
        nonce: [u8; 16],
        /// What it will run: to be on record first.
        program: Box<ProgramRecord>,
    },
    /// To a daemon that came later; its door comes along.
    Here(Box<Standing>),
    Started(Started),
    Sample(Sample),
    /// What it called of MCP servers, all since its start.
    Tools(Vec<ToolCalls>),
    Refused(RefusedHost),
    Violated(Breach),
    /// The box holds still, as it was told for the so manieth time by this daemon.
    Stilled {
        freezes: u64,
    },
    /// So much is set aside for a replica.
    Carved {
        child: String,
        purse: Purse,
    },
    Ended(Box<Ending>),
    Failed(Failed),
}

/// How a box stands when somebody adopts it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Standing {
    pub(crate) task: Task,
    pub(crate) pid: u32,
    pub(crate) started: Option<Started>,
    pub(crate) sample: Option<Sample>,
    /// Whether it says when its box holds still. Those of the first release don't.
    #[serde(default)]
    pub(crate) tells_stillness: bool,
}

/// The program runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Started {
    /// Pid 1 of the box, on the host.
    pub(crate) pid: i32,
    /// The image whose files it has.
    #[serde(default)]
    pub(crate) image: Option<UsedImage>,
    /// What holds its limits.
    pub(crate) limits_by: String,
}

/// What a box uses: all since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) cpu_ms: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) processes: Option<u64>,
    pub(crate) tokens: u64,
    pub(crate) micro_usd: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
}

impl From<&crate::attend::Usage> for Sample {
    fn from(usage: &crate::attend::Usage) -> Self {
        Self {
            cpu_ms: usage.cpu_ms,
            memory_bytes: usage.memory_bytes,
            processes: usage.processes,
            tokens: usage.tokens,
            micro_usd: usage.micro_usd,
            sent_bytes: usage.sent_bytes,
            received_bytes: usage.received_bytes,
            read_bytes: 0,
            written_bytes: 0,
        }
    }
}

/// Something the gateway refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RefusedHost {
    pub(crate) code: String,
    pub(crate) host: String,
    pub(crate) port: Option<u16>,
    pub(crate) detail: Option<String>,
    pub(crate) hint: String,
    /// How often since it was told last. Keepers of the first release tell each kind once.
    #[serde(default = "once")]
    pub(crate) count: u64,
    /// Whether it was told before: then it is on record already.
    #[serde(default)]
    pub(crate) is_repeat: bool,
}

fn once() -> u64 {
    1
}

impl RefusedHost {
    pub(crate) fn again(self, count: u64) -> Self {
        Self {
            count,
            is_repeat: true,
            ..self
        }
    }
}

impl From<&belljar_egress::Refusal> for RefusedHost {
    fn from(refusal: &belljar_egress::Refusal) -> Self {
        Self {
            code: refusal.code.code().to_owned(),
            host: refusal.host.clone(),
            port: refusal.port,
            detail: refusal.detail.clone(),
            hint: refusal.hint.clone(),
            count: 1,
            is_repeat: false,
        }
    }
}

/// Something a wall or a limit stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Breach {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) count: u64,
    pub(crate) why: String,
    pub(crate) hint: Option<String>,
}

impl From<&crate::result::Violation> for Breach {
    fn from(violation: &crate::result::Violation) -> Self {
        Self {
            kind: violation.kind.to_owned(),
            name: violation.name.clone(),
            count: violation.count,
            why: violation.why.clone(),
            hint: violation.hint.clone(),
        }
    }
}

/// How a box ended, wherever it was kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Ending {
    pub(crate) exit_code: Option<i32>,
    pub(crate) signal: Option<i32>,
    /// The limit or person that ended it.
    pub(crate) killed_by: Option<String>,
    pub(crate) duration_ms: u64,
    pub(crate) peak_memory_mb: u64,
    pub(crate) network: Option<NetworkUsed>,
    pub(crate) cpu_ms: u64,
    pub(crate) tokens: u64,
    pub(crate) micro_usd: u64,
    /// What it may spend on models and did not, where that is known.
    pub(crate) unspent: Option<Purse>,
    pub(crate) breaches: Vec<Breach>,
    pub(crate) notes: Vec<String>,
}

impl From<&RunResult> for Ending {
    fn from(result: &RunResult) -> Self {
        let models = result.network.as_ref().map(|network| &network.llm);
        let (tokens, micro_usd) = models.map_or((0, 0), crate::network::metered);
        Self {
            exit_code: result.exit_code,
            signal: result.signal,
            killed_by: result.killed_by.map(|by| by.as_str().to_owned()),
            duration_ms: result.duration_ms as u64,
            peak_memory_mb: result.resource_usage.peak_memory_mb as u64,
            network: result.network.as_ref().map(NetworkUsed::from),
            cpu_ms: (result.resource_usage.cpu_seconds * 1000.0).ceil() as u64,
            tokens,
            micro_usd,
            unspent: None,
            breaches: result.violations.iter().map(Breach::from).collect(),
            notes: result.notes.clone(),
        }
    }
}

/// As the record tells it.
impl From<&Ending> for belljar_gate::Ending {
    fn from(ending: &Ending) -> Self {
        Self {
            exit_code: ending.exit_code,
            signal: ending.signal,
            killed_by: ending.killed_by.clone(),
            duration_ms: ending.duration_ms,
            cpu_ms: ending.cpu_ms,
            peak_memory_mb: ending.peak_memory_mb,
            network: ending.network.clone(),
        }
    }
}

/// A box that never ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failed {
    pub(crate) code: String,
    pub(crate) what: String,
    pub(crate) hint: Option<String>,
}

impl From<&crate::error::RunError> for Failed {
    fn from(error: &crate::error::RunError) -> Self {
        Self {
            code: error.code().to_owned(),
            what: error.to_string(),
            hint: error.hint(),
        }
    }
}

impl From<Failed> for crate::error::RunError {
    fn from(failed: Failed) -> Self {
        const CODES: &[&str] = &[
            "refused",
            "not_found",
            "not_executable",
            "invalid_input",
            "killed_early",
            "deny_permit",
        ];
        let known = CODES.iter().find(|code| **code == failed.code);
        Self::Kept {
            code: known.copied().unwrap_or("internal"),
            what: failed.what,
            hint: failed.hint,
        }
    }
}

/// What a keeper leaves behind, for a daemon that was not there at the end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Legacy {
    pub(crate) task: Task,
    pub(crate) at_ms: u64,
    pub(crate) end: Result<Ending, Failed>,
}
