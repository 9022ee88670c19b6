// Made by scripts/api-types.mjs from schemas/operator.openapi.json. Do not edit.

/** How an agent's declaration changed. */
export type AgentChange = {
  /** How. */
  change: ChangeOfAgent;
  /** The keys that are not what they were. */
  keys?: Array<Shown>;
  /** Its name. */
  name: Shown;
};

/** Everything about one agent. */
export type AgentDetail = {
  /** As a list shows it. */
  agent: AgentView;
  /** Its own children. */
  children: Array<AgentId>;
  /** What is weaker here than on a full host. */
  degraded: Array<Shown>;
  /** What it was refused, the newest first. */
  denials: Array<Denial>;
  /** The image whose files it has, if not the host's. */
  image?: ImageView | null;
  /** The keeper's process, while it lives. */
  keeper_pid?: number | null;
  /** What holds its limits. */
  limits_by: Shown;
  /** Its capability, as a file that `belljar run --config` takes. */
  policy: string;
  /** The wall. */
  tier: Shown;
  /** The directory it works in. */
  workdir: string;
};

/** The name of one run of an agent: its worker's. */
export type AgentId = string;

/** Agents, by start. */
export type AgentList = {
  /** The agents. */
  agents: Array<AgentView>;
  /** When this was true. */
  at_ms: number;
  /** The most that may live at once. */
  max_agents: number;
  /** Declared agents that do not run, and why. */
  not_running?: Array<DeclaredView>;
};

/** What an agent is doing. */
export type AgentPhase = "starting" | "running" | "freezing" | "quarantined" | "stopping" | "waiting" | "crash_loop" | "ended";

/** An agent as a list shows it. */
export type AgentView = {
  /** How its budget stands. */
  budget: BudgetView;
  /** The capability it runs under: a profile's name or a file's. */
  capability: Shown;
  /** What it runs, shortened. */
  command: Shown;
  /** Steps down from its root, which has 0. */
  depth: number;
  /** How it ended, where it has. */
  end?: End | null;
  /** Who it is. */
  id: AgentId;
  /** What it may use at most. */
  limits: LimitsView;
  /** What people call it. */
  name: Shown;
  /** Alerts about it that nobody has resolved. */
  open_alerts: number;
  /** Who asked for it; absent for a root. */
  parent?: AgentId | null;
  /** What it is doing. */
  phase: AgentPhase;
  /** When it will be started again, while it waits for that. */
  restart_at_ms?: number | null;
  /** How often it was started again. */
  restarts: number;
  /** Since when it is. */
  since_ms: number;
  /** When it was started. */
  started_at_ms: number;
  /** What it uses now. */
  usage: UsageNow;
};

/** The number of an alert. */
export type AlertId = string;

/** The alerts there are. */
export type AlertKind = "HighResourceUsage" | "SuspiciousToolUsage" | "UnauthorizedAccess" | "NetworkAnomaly" | "PrivilegeEscalation" | "AgentCrashed" | "AgentQuarantined" | "BudgetExceeded" | "ReplicationDenied" | "KillSwitchEngaged" | "LedgerFailure" | "ApprovalWaiting" | "StorageFailure";

/** Alerts, the newest first. */
export type AlertList = {
  /** The alerts. */
  alerts: Array<AlertView>;
};

/** Which alerts. The newest come first. */
export type AlertQuery = {
  /** About whom. */
  agent?: AgentId | null;
  /** How many; at most 1,000, and 200 where absent. */
  limit?: number | null;
  /** In which state; open and acknowledged where absent. */
  state?: AlertState | null;
};

/** Where an alert stands. */
export type AlertState = "open" | "acknowledged" | "resolved";

/** An alert. */
export type AlertView = {
  /** About whom; absent where it is about the daemon. */
  agent?: AgentId | null;
  /** The agent's name, as it was. */
  agent_name?: Shown | null;
  /** Who acknowledged or resolved it; `belljar` where its cause is gone. */
  by?: Shown | null;
  /** How often its cause was seen. */
  count: number;
  /** What to do about it. */
  hint?: Shown | null;
  /** Its number. */
  id: AlertId;
  /** What it is about. */
  kind: AlertKind;
  /** When its cause was last seen. */
  last_at_ms: number;
  /** When it was raised. */
  opened_at_ms: number;
  /** Why it was acknowledged or resolved. */
  reason?: Shown | null;
  /** What was done about it by rule. */
  responses?: Array<ResponseTaken>;
  /** How bad it is. */
  severity: Severity;
  /** Whether a silence holds: nobody is told of it. */
  silenced?: boolean;
  /** Where it stands. */
  state: AlertState;
  /** What happened. */
  text: Shown;
};

/** What was resolved together. */
export type AlertsResolved = {
  /** Their numbers. */
  resolved: Array<AlertId>;
};

/** An amount per dimension. */
export type Amounts = {
  /** Milliseconds of CPU time. */
  cpu_ms?: number;
  /** Memory, in mebibytes. */
  memory_mb?: number;
  /** Millionths of a US dollar. */
  micro_usd?: number;
  /** Processes and threads. */
  pids?: number;
  /** Replicas. */
  replicas?: number;
  /** Model tokens. */
  tokens?: number;
};

/** A request that needs a reason and nothing else. */
export type Because = {
  /** Why; it goes to the ledger. */
  reason: string;
};

/** A ceiling per dimension. An absent dimension has no ceiling of its own; in a request it asks for nothing in particular. */
export type Budget = {
  /** Milliseconds of CPU time. */
  cpu_ms?: number | null;
  /** Memory, in mebibytes. */
  memory_mb?: number | null;
  /** Millionths of a US dollar. */
  micro_usd?: number | null;
  /** Processes and threads alive at once. */
  pids?: number | null;
  /** Replicas alive at once, below this worker. */
  replicas?: number | null;
  /** Model tokens. */
  tokens?: number | null;
};

/** How a worker's budget stands. */
export type BudgetView = {
  /** What a new child could still be given. */
  available: Budget;
  /** What it was given, for itself and all below it. */
  granted: Budget;
  /** The part its own box may use. */
  own: Budget;
  /** The part set aside for its live children. */
  reserved: Amounts;
  /** What it and its ended children have used up for good. */
  spent: Amounts;
};

/** What changed of an agent's declaration. */
export type ChangeOfAgent = "added" | "removed" | "changed";

/** The clock counts as steady again. */
export type ClockAcknowledged = {
  /** The clock as it is now. */
  clock: ClockView;
};

/** A clock that went back denies every grant until an operator acknowledges it. */
export type ClockState = "steady" | "went_back";

/** Whether the wall clock can be trusted. */
export type ClockView = {
  /** The latest time ever seen. */
  high_water_ms: number;
  /** Its state. */
  state: ClockState;
};

/** A line of a difference. */
export type CodeLine = {
  /** `+`, `-`, a space, or `@` between two parts. */
  mark: string;
  /** Its parts, each of one colour. */
  parts: Array<CodePart>;
};

/** A part of a line of code. */
export type CodePart = {
  /** The text. */
  text: string;
  /** What it is. */
  tint: CodeTint;
};

/** What a part of a line of code is. */
export type CodeTint = "plain" | "keyword" | "text" | "comment" | "number";

/** A program and its arguments, 32 KiB in all. */
export type Command = Array<string>;

/** The contract that replication is held to. */
export type ContractView = {
  /** What a root is given. */
  budget: Budget;
  /** Between two children of one parent, in milliseconds. */
  cooldown_ms: number;
  /** Until a worker is ended, in milliseconds; absent where nothing says so. */
  expiration_ms?: number | null;
  /** Steps down from a root. */
  max_depth: number;
  /** Workers alive at once, roots included. */
  max_replicas: number;
  /** What becomes of children whose parent is gone. */
  on_parent_exit: OnParentExit;
  /** What stops replication. */
  stop_conditions: Array<StopCondition>;
};

/** Workers by state. */
export type Counts = {
  /** Gone, and still remembered. */
  ended?: number;
  /** Told to hold still, and not seen to yet. */
  freezing?: number;
  /** Frozen. */
  quarantined?: number;
  /** At work. */
  running?: number;
  /** Granted, and their box not up yet. */
  starting?: number;
};

/** What became of declared agents. */
export type DeclaredReply = {
  /** Those that still don't, and why. */
  not_running: Array<DeclaredView>;
  /** Those that run now and did not before. */
  started: Array<Shown>;
};

/** Why a declared agent does not run. */
export type DeclaredState = "pending" | "refused" | "stopped";

/** A declared agent that does not run, and why. */
export type DeclaredView = {
  /** How often it was tried. */
  attempts: number;
  /** Who wanted that, where somebody did. */
  by?: Shown | null;
  /** A stable word, such as `deny_budget` or `stopped`. */
  code: Shown;
  /** What to do. */
  hint?: Shown | null;
  /** Its name. */
  name: Shown;
  /** What was said. */
  reason: Shown;
  /** When it is tried again, where it will be. */
  retry_at_ms?: number | null;
  /** Since when, in milliseconds since 1970. */
  since_ms: number;
  /** Why it does not run. */
  state: DeclaredState;
};

/** Something an agent was refused. */
export type Denial = {
  /** The line of policy that would allow it, where one could. */
  allow_with?: Shown | null;
  /** A stable word, such as `deny_host`. */
  code: Shown;
  /** How often, at least. */
  count: number;
  /** What sort of thing. */
  kind: DenialKind;
  /** When last. */
  last_at_ms: number;
  /** The host and port, the path, the system call or the limit. */
  what: Shown;
  /** Why. */
  why: Shown;
};

/** What sort of thing was refused. */
export type DenialKind = "network" | "system_call" | "limit" | "replication" | "tool";

/** A reply that says only that it is done. */
export type Done = {
  /** Always true: everything else is an error reply. */
  ok: boolean;
};

/** A request that says nothing. */
export type Empty = Record<string, never>;

/** How an agent ended. */
export type End = {
  /** When. */
  at_ms: number;
  /** What ended it. */
  cause: EndCause;
  /** The limit, or the reason somebody gave, or why it never started. */
  detail?: Shown | null;
  /** The program's exit code, unless a signal ended it. */
  exit_code?: number | null;
  /** The signal that ended it. */
  signal?: number | null;
};

/** What ended an agent. */
export type EndCause = "finished" | "crashed" | "out_of_memory" | "limit" | "stopped" | "killed" | "keeper_lost" | "never_started";

/** What ended a worker. */
export type EndedBy = {
  /** A stable word, such as `exited`, `reap_stale` or `kill_switch_engaged`. */
  code: Shown;
  /** The reason somebody gave. */
  reason?: Shown | null;
};

/** Ends everything and refuses every grant until it is reset. */
export type EngageRequest = {
  /** Why; it goes to the ledger. */
  reason: string;
};

/** An engaged kill switch. */
export type Engagement = {
  /** What holds it: the state directory, or where that could not be written to something that does not last as long. */
  held_by?: Shown | null;
  /** Why. */
  reason: Shown;
  /** Since when. */
  since_ms: number;
};

/** A new epoch began: every manifest of the old one is void. */
export type EpochBumped = {
  /** The new epoch. */
  epoch: number;
  /** What became of the old one's workers. */
  report: KillReport;
};

/** The kinds of events. */
export type EventKind = "started" | "ended" | "restarting" | "egress_refused" | "system_call_refused" | "limit_met" | "replicated" | "replication_denied" | "quarantined" | "released" | "killed" | "kill_switch_engaged" | "kill_switch_reset" | "budget_exceeded" | "tool_refused" | "tool_held" | "alert" | "responded" | "ledger" | "daemon";

/** Events, the newest first. */
export type EventList = {
  /** The events. */
  events: Array<EventView>;
};

/** Which events. The newest come first. */
export type EventQuery = {
  /** Newer than the event of this number. */
  after?: number | null;
  /** Whose. */
  agent?: AgentId | null;
  /** Older than the event of this number. */
  before?: number | null;
  /** Of which kind. */
  kind?: EventKind | null;
  /** How many; at most 1,000, and 100 where absent. */
  limit?: number | null;
  /** Whose text holds this. */
  search?: string | null;
  /** Of at least which severity. */
  severity?: Severity | null;
};

/** Something that happened. */
export type EventView = {
  /** To whom; absent where it is about the daemon. */
  agent?: AgentId | null;
  /** When. */
  at_ms: number;
  /** A stable word where there is one, such as `deny_host`. */
  code?: Shown | null;
  /** What to change, where something can be. */
  hint?: Shown | null;
  /** Its number; later events have larger ones. */
  id: number;
  /** What kind. */
  kind: EventKind;
  /** How bad. */
  severity: Severity;
  /** What happened. */
  text: Shown;
};

/** Which agents. */
export type FleetQuery = {
  /** Whether agents that have ended are told too. */
  ended?: boolean | null;
};

/** An operator's answer. */
export type HoldAnswerRequest = {
  /** Whether the call may be made. */
  allow: boolean;
  /** Why; it goes to the ledger, and to whoever asked where the answer is no. */
  reason: string;
};

/** The name of a call that waits. */
export type HoldId = string;

/** Calls that wait, the oldest first. */
export type HoldList = {
  /** The calls. */
  holds: Array<HoldView>;
};

/** A call that waits. */
export type HoldView = {
  /** The arguments, as JSON; what a rule redacts is its size and digest. */
  arguments: Shown;
  /** Why it is held. */
  code: Shown;
  /** When it is refused if nobody answers. */
  deadline_ms: number;
  /** Its name. */
  id: HoldId;
  /** When it began to wait. */
  opened_at_ms: number;
  /** The rule that holds it. */
  rule: Shown;
  /** The run whose call it is. */
  run: Shown;
  /** The server. */
  server: Shown;
  /** The tool, or what else is asked. */
  tool: Shown;
};

/** An image that an agent runs in. */
export type ImageView = {
  /** What it is known by: a name may come to mean another image, this can't. */
  digest: Shown;
  /** What it was called when the agent was started. */
  name: Shown;
};

/** What a kill did. The kill comes first and its record after. */
export type KillReport = {
  /** Boxes that were up and are gone. */
  boxes: number;
  /** From the request to the end of the last process, in microseconds. */
  elapsed_us: number;
  /** The ledger's entry about it. */
  entry?: number | null;
  /** What holds the kill switch, where that was engaged; absent where nothing does. */
  held_by?: Shown | null;
  /** Workers ended. */
  killed: number;
  /** Why there is no entry. */
  not_recorded?: Shown | null;
  /** Boxes that still have a live process. Anything but 0 needs a person. */
  survivors: number;
};

/** Ends a worker. */
export type KillRequest = {
  /** Why; it goes to the ledger. */
  reason: string;
  /** Whether everything below it ends too. */
  subtree: boolean;
};

/** Whether the kill switch is engaged. */
export type KillSwitchView = {
  /** Since when and why; absent where it is not. */
  engaged?: Engagement | null;
};

/** Entries, the newest first. */
export type LedgerEntries = {
  /** The entries. */
  entries: Array<LedgerEntry>;
};

/** An entry. */
export type LedgerEntry = {
  /** What it says. */
  entry: unknown;
  /** Its place. */
  index: number;
};

/** Which entries. The newest come first. */
export type LedgerQuery = {
  /** Older than this index. */
  before?: number | null;
  /** Prove this entry. */
  index?: number | null;
  /** How many; at most 500, and 50 where absent. */
  limit?: number | null;
};

/** How the log stands. */
export type LedgerReport = {
  /** The signed checkpoint, as text. */
  checkpoint: string;
  /** Entries in it. */
  entries: number;
  /** Why it can't be written; grants are refused as long as this is there. */
  failed?: Shown | null;
  /** The key that signs, as text. */
  key: Shown;
  /** Whether all of it was last found whole: `whole`, `not_checked` or what is wrong. */
  verified: Shown;
  /** When that was. */
  verified_at_ms?: number | null;
};

/** Whether decisions can be recorded. */
export type LedgerView = {
  /** Entries in it. */
  entries: number;
  /** Why it can't be written; grants are refused as long as this is there. */
  failed?: Shown | null;
};

/** What an agent's own box may use at most; absent where nothing limits it. */
export type LimitsView = {
  /** CPU time, in milliseconds. */
  cpu_ms?: number | null;
  /** Hundredths of one core. */
  cpu_percent?: number | null;
  /** Bytes of memory. */
  memory_bytes?: number | null;
  /** Millionths of a US dollar. */
  micro_usd?: number | null;
  /** Processes and threads. */
  processes?: number | null;
  /** Tokens of models. */
  tokens?: number | null;
};

/** Which samples. */
export type MetricsQuery = {
  /** Whose; the sum over all agents where absent. */
  agent?: AgentId | null;
  /** The most samples; at most 2,000, and 600 where absent. */
  points?: number | null;
  /** From when; ten minutes ago where absent. */
  since_ms?: number | null;
  /** Until when; now where absent. */
  until_ms?: number | null;
};

/** Samples, oldest first. */
export type MetricsReply = {
  /** Milliseconds between two of them. */
  every_ms: number;
  /** The samples. */
  samples: Array<Sample>;
};

/** What becomes of children whose parent is gone. */
export type OnParentExit = "keep" | "kill";

/** What happens when a stop condition holds. */
export type OnTrigger = "deny" | "quarantine" | "kill";

/** Which part of an agent's output. */
export type OutputQuery = {
  /** From this byte on, as an earlier answer's `next` said; the last part where absent. */
  from?: number | null;
  /** The most bytes; at most 256 KiB, which it is where absent. */
  most?: number | null;
  /** Which stream; standard output where absent. */
  stream?: OutputStream | null;
};

/** A part of an agent's output. */
export type OutputReply = {
  /** Bytes before `from` that are not kept any more. */
  dropped: number;
  /** Where this part begins. */
  from: number;
  /** Whether there will be no more. */
  is_end: boolean;
  /** Where the next begins. */
  next: number;
  /** The text; what is not UTF-8 is replaced. It may hold anything: whoever shows it sees to that. */
  text: string;
};

/** A stream of output. */
export type OutputStream = "stdout" | "stderr";

/** Why a request was not granted. The body of every reply that is not a success. */
export type Problem = {
  /** A stable word for programs, such as `deny_quota` or `rate_limited`. */
  code: string;
  /** What to do about it. */
  hint?: string | null;
  /** What happened, for people. */
  message: string;
  /** When asking again may help. */
  retry_after_ms?: number | null;
};

/** Processes of a box. */
export type ProcessList = {
  /** The processes, parents first. */
  processes: Array<ProcessView>;
};

/** A process of a box. */
export type ProcessView = {
  /** Its command line, shortened. */
  command: Shown;
  /** CPU time so far, in milliseconds. */
  cpu_ms: number;
  /** Bytes of memory. */
  memory_bytes: number;
  /** Its parent's. */
  parent: number;
  /** Its number on the host. */
  pid: number;
  /** One letter: R, S, D, T or Z. */
  state: Shown;
  /** Threads. */
  threads: number;
};

/** That an entry is in the log. */
export type ProofReply = {
  /** Its place. */
  index: number;
  /** A c2sp.org/tlog-proof file, which `belljar audit prove --check` reads. */
  proof: string;
};

/** Something to type. */
export type ProposalCommand = {
  /** The words. */
  command: Shown;
  /** What it does. */
  what: Shown;
};

/** Everything a reviewer looks at. */
export type ProposalDetail = {
  /** What to type, on the host, to go on. */
  commands: Array<ProposalCommand>;
  /** What it is for, in its author's words. */
  description: string;
  /** What an approval would be about; absent until its stages have run. */
  digests?: ProposalDigests | null;
  /** What became of each file. */
  files: Array<ProposalFile>;
  /** What it touches besides the lines it changes. */
  impact: ProposalImpact;
  /** Why parts of this are missing, where they are. */
  not_ready?: Shown | null;
  /** What the list shows. */
  proposal: ProposalRow;
  /** Why it was refused, and why it is as risky as it is. */
  reasons: Array<ProposalReason>;
  /** What follows from the evidence: advice. */
  recommendation: Shown;
  /** What people said, and whether it is enough. */
  review: ProposalReview;
  /** Where its rollout is. */
  rollout?: RolloutView | null;
  /** What each stage found. */
  stages: Array<ProposalStage>;
};

/** What an approval is about, each as the hex of a SHA-256. */
export type ProposalDigests = {
  /** The tree before. */
  base_tree: Shown;
  /** The tree after. */
  candidate_tree: Shown;
  /** The evidence of every stage. */
  evidence: Shown;
  /** The rules it was judged by. */
  policy: Shown;
};

/** What became of one file. */
export type ProposalFile = {
  /** Lines that came. */
  added: number;
  /** Lines that were left out. */
  cut: number;
  /** `added`, `removed` or `changed`. */
  kind: Shown;
  /** The difference; empty where it is not text. */
  lines: Array<CodeLine>;
  /** Which. */
  path: string;
  /** Lines that went. */
  removed: number;
};

/** What a change touches besides the lines it changes. */
export type ProposalImpact = {
  /** Names that others could use and that are new. */
  api_added: Array<string>;
  /** Such names that are declared in another way. */
  api_changed: Array<string>;
  /** Such names that are gone. */
  api_removed: Array<string>;
  /** Other files that mention a name that went or changed. */
  callers: Array<string>;
  /** What makes it riskier. */
  raised: Array<string>;
};

/** Proposals, the newest first, and what became of all of them. */
export type ProposalList = {
  /** When this was true. */
  at_ms: number;
  /** Older ones that are not told. */
  left_out: number;
  /** The proposals. */
  proposals: Array<ProposalRow>;
  /** Counts of all of them. */
  stats: ProposalStats;
};

/** The name of a proposal. */
export type ProposalName = string;

/** Why something was refused or is risky. */
export type ProposalReason = {
  /** Where, if it is about a place. */
  at?: Shown | null;
  /** A stable word. */
  code: Shown;
  /** What to do about it. */
  hint?: string | null;
  /** In words. */
  message: string;
  /** The stage that says so. */
  stage: Shown;
};

/** What people said, and whether it is enough. */
export type ProposalReview = {
  /** Who approved, so that it counts. */
  approved_by: Array<Shown>;
  /** How many must. */
  needed: number;
  /** `approved`, `rejected`, `waiting`, or `closed` before the stages have run. */
  state: Shown;
  /** Everything that was said and signed, the oldest first. */
  statements: Array<ReviewStatement>;
  /** In words. */
  words: Array<Shown>;
};

/** How much can go wrong. */
export type ProposalRisk = "low" | "medium" | "high" | "critical";

/** A proposal as a list shows it. */
export type ProposalRow = {
  /** Who proposed it. */
  by: Shown;
  /** Its name. */
  id: ProposalName;
  /** The project it is about. */
  project: Shown;
  /** When it was proposed. */
  proposed_at_ms: number;
  /** How much can go wrong. */
  risk: ProposalRisk;
  /** Where its rollout is, where it has one. */
  rollout?: Shown | null;
  /** How far it has come. */
  status: ProposalStatus;
  /** What it is for, in its author's words: the beginning. */
  title: Shown;
};

/** What one stage found. */
export type ProposalStage = {
  /** Whether it is the result of an earlier run on the same inputs. */
  cached: boolean;
  /** How long it took. */
  duration_ms: number;
  /** Figures of the stage's own, as text. */
  facts: Array<StageFact>;
  /** What was given to the stage. */
  inputs_sha256: Shown;
  /** The stage, such as `3-unit`. */
  name: Shown;
  /** Why, where it did not pass. */
  reasons: Array<ProposalReason>;
  /** How it went. */
  verdict: StageVerdict;
};

/** What was proposed, what became of it, and why. */
export type ProposalStats = {
  /** By who proposed. */
  by_author: Record<string, number>;
  /** By risk. */
  by_risk: Record<string, number>;
  /** By how far they came. */
  by_status: Record<string, number>;
  /** All proposals. */
  proposals: number;
  /** Why stages refused, by code. */
  refused_for: Record<string, number>;
  /** Why people refused. */
  rejected_for: Record<string, number>;
  /** What people said, in all. */
  statements: Record<string, number>;
};

/** How far a proposal has come. */
export type ProposalStatus = "draft" | "checking" | "rejected" | "waiting" | "approved" | "deployed" | "rolled_back";

/** What a file says now and did not before. */
export type ReloadReply = {
  /** Agents, by name. */
  agents: Array<AgentChange>;
  /** Settings of the supervisor that take effect with its next start. */
  needs_restart: Array<Shown>;
  /** Those that don't run now, and why. */
  not_running: Array<DeclaredView>;
};

/** Reads the supervisor's file again. */
export type ReloadRequest = {
  /** Whether nothing is to be done but told what would be. */
  dry_run?: boolean;
  /** Whether agents that changed go on as they are until they are started again. */
  no_restart?: boolean;
  /** Why; it goes to the ledger. */
  reason: string;
};

/** Lets grants through again. Nothing that was killed comes back. */
export type ResetRequest = {
  /** Why; it goes to the ledger. */
  reason: string;
};

/** Which alerts are resolved together. One of the three must be said. */
export type ResolveAlertsRequest = {
  /** Those about agents with this name or id; `*` stands for any letters. */
  agent?: string | null;
  /** All that the other two do not leave out. */
  all?: boolean;
  /** Those of this kind. */
  kind?: AlertKind | null;
  /** Why; it goes to the ledger. */
  reason: string;
};

/** What a rule may do. */
export type Response = "notify" | "freeze" | "quarantine" | "kill" | "kill_subtree";

/** What was done by rule. */
export type ResponseTaken = {
  /** When. */
  at_ms: number;
  /** Why it failed, where it did. */
  failed?: Shown | null;
  /** What. */
  response: Response;
};

/** What happens when an agent ends by itself. Whoever was stopped, killed or met a limit of time or money stays ended. */
export type RestartPolicy = "never" | "on_failure" | "always";

/** Ends an agent kindly and starts it anew: the same command under the same capability, elsewhere if that is said. */
export type RestartRequest = {
  /** Milliseconds until it is killed; the daemon's own where absent. */
  grace_ms?: number | null;
  /** Why; it goes to the ledger. */
  reason: string;
  /** Where it works from then on; where it did where absent. */
  workdir?: string | null;
};

/** Something that somebody said and signed. */
export type ReviewStatement = {
  /** When. */
  at_ms: number;
  /** Until when an approval counts. */
  expires_at_ms?: number | null;
  /** Why, when it is no. */
  reasons: Array<Shown>;
  /** Who. */
  reviewer: Shown;
  /** In words. */
  text: string;
  /** `approve`, `reject` or `comment`. */
  verdict: Shown;
};

/** Revokes a worker's manifest, and with it every manifest below. */
export type RevokeRequest = {
  /** Why; it goes to the ledger. */
  reason: string;
  /** Whose. */
  worker_id: WorkerId;
};

/** What a revocation did. */
export type Revoked = {
  /** Manifests that are void now. */
  manifests: number;
  /** What became of the workers that held them. */
  report: KillReport;
};

/** An instance of a rollout. */
export type RolloutInstance = {
  /** Its name. */
  name: Shown;
  /** Whether it is to run the candidate. */
  on_candidate: boolean;
  /** The tree that its place shows, as hex. */
  tree: Shown;
};

/** A step of a rollout. */
export type RolloutStep = {
  /** What it is called. */
  name: Shown;
  /** `passed`, `now` or `ahead`; `undone` once it went back. */
  state: Shown;
};

/** Where a rollout is. */
export type RolloutView = {
  /** The share of requests that fail, before and after. */
  error_rates: Array<number>;
  /** The instances, and what each is to run. */
  instances: Array<RolloutInstance>;
  /** Whether a supervisor keeps the instances. */
  is_supervised: boolean;
  /** Why it is held, if somebody holds it. */
  paused?: Shown | null;
  /** How often the instances were looked at in this step. */
  rounds: number;
  /** `shadow`, `5 %`, …, `done`, `going back`, `rolled back`. */
  stage: Shown;
  /** The steps in turn, and which is reached. */
  steps: Array<RolloutStep>;
  /** Why it goes or went back. */
  why_back?: Shown | null;
};

/** What was used in one stretch of time. Rates are means over the stretch. */
export type Sample = {
  /** When the stretch began. */
  at_ms: number;
  /** Hundredths of one core. */
  cpu_percent: number;
  /** The most bytes of memory in it. */
  memory_bytes: number;
  /** What they cost, in millionths of a US dollar. */
  micro_usd: number;
  /** The most processes and threads in it. */
  processes: number;
  /** Bytes a second read from disks. */
  read_rate: number;
  /** Bytes a second received through it. */
  receive_rate: number;
  /** Bytes a second sent through the gateway. */
  send_rate: number;
  /** Tokens of models in it. */
  tokens: number;
  /** Bytes a second written to disks. */
  write_rate: number;
};

/** How bad something is. */
export type Severity = "info" | "warning" | "critical";

/**
 * Text for people, made from text nobody vouches for: cut to length, control characters replaced.
 *
 * An operator's terminal prints it, so an agent must not be able to put escape sequences there, nor to make a listing
 * too long to send.
 */
export type Shown = string;

/** The number of a silence. */
export type SilenceId = string;

/** Silences that hold, the newest first. */
export type SilenceList = {
  /** The silences. */
  silences: Array<SilenceView>;
};

/**
 * Asks that nobody is told of some alerts for a while. They are raised and listed all the same, and rules that freeze or end
 * an agent do.
 */
export type SilenceRequest = {
  /** Alerts about agents with this name or id; `*` stands for any letters. About everybody where absent. */
  agent?: string | null;
  /** For how long, from 1,000 to 2,592,000,000 (30 days). */
  for_ms: number;
  /** Alerts of this kind; of every kind where absent. */
  kind?: AlertKind | null;
  /** Why; it goes to the ledger. */
  reason: string;
};

/** A silence. */
export type SilenceView = {
  /** About whom; everybody where absent. */
  agent?: string | null;
  /** Who asked for it. */
  by: Shown;
  /** Its number. */
  id: SilenceId;
  /** Of which kind; every kind where absent. */
  kind?: AlertKind | null;
  /** Why. */
  reason: Shown;
  /** Since when it holds. */
  since_ms: number;
  /** Until when. */
  until_ms: number;
};

/** A figure of a stage. */
export type StageFact = {
  /** What it is. */
  name: Shown;
  /** How much, or which. */
  value: Shown;
};

/** How a stage went. */
export type StageVerdict = "pass" | "fail" | "not_asked";

/** Makes declared agents wanted again, and starts them. */
export type StartDeclaredRequest = {
  /** Which; all that do not run where absent. */
  names?: Array<string>;
  /** Why; it goes to the ledger. */
  reason: string;
};

/** Starts an agent. */
export type StartRequest = {
  /** The text of a capability.yaml. */
  capability?: string | null;
  /** What it runs. */
  command: Command;
  /** What people call it. */
  name: string;
  /** A shipped profile, where no capability is given; `moderate` where neither is. */
  profile?: string | null;
  /** What happens when it ends by itself. */
  restart?: RestartPolicy;
  /** Whether it is started again when it ran out of memory. Absent: with `always`, and not otherwise. */
  restart_on_oom?: boolean | null;
  /** The texts of the capability files that its `mcp.servers` name, by the names that stand there. */
  server_capabilities?: Record<string, string>;
  /** Where; the daemon's own working directory where absent. */
  workdir?: string | null;
};

/** How the supervisor does. */
export type StatusView = {
  /** Whether the wall clock can be trusted. */
  clock: ClockView;
  /** The epoch that manifests must carry. */
  epoch: number;
  /** What is stopped for good. */
  kill_switch: KillSwitchView;
  /** Whether decisions can be recorded. */
  ledger: LedgerView;
  /** When the supervisor started. */
  started_at_ms: number;
  /** How long ago that was, by a clock that nobody sets. */
  uptime_ms: number;
  /** Belljar's version. */
  version: Shown;
  /** Workers by state. */
  workers: Counts;
};

/** What stops replication. */
export type StopCondition = {
  /** The expression, as in the file, shortened. */
  expression: Shown;
  /** Its name. */
  name: Shown;
  /** What happens when it holds. */
  on_trigger: OnTrigger;
};

/** Asks an agent to end, and ends it when it has not after the grace. */
export type StopRequest = {
  /** Milliseconds until it is killed; the daemon's own where absent. */
  grace_ms?: number | null;
  /** Why; it goes to the ledger. */
  reason: string;
};

/** Quarantines or releases a worker, alone or with all below it. */
export type SubtreeRequest = {
  /** Why; it goes to the ledger. */
  reason: string;
  /** All below it too. */
  subtree?: boolean;
};

/** What an agent uses now. */
export type UsageNow = {
  /** CPU time so far, in milliseconds. */
  cpu_ms: number;
  /** Hundredths of one core, over the last sample. */
  cpu_percent: number;
  /** Bytes of memory. */
  memory_bytes: number;
  /** What they cost so far, in millionths of a US dollar. */
  micro_usd: number;
  /** Processes and threads. */
  processes: number;
  /** Bytes read from disks so far. */
  read_bytes: number;
  /** Bytes received through it so far. */
  received_bytes: number;
  /** Bytes sent through the gateway so far. */
  sent_bytes: number;
  /** Tokens of models so far. */
  tokens: number;
  /** Bytes written to disks so far. */
  written_bytes: number;
};

/** The name of a worker. */
export type WorkerId = string;

/**
 * Workers. In `GET /v1/workers` by start, in `GET /v1/tree` depth first: each parent is followed by all below it.
 *
 * A tree comes as a list so that a deep lineage is no deeper JSON.
 */
export type WorkerList = {
  /** The workers. */
  workers: Array<WorkerView>;
};

/** What a worker is doing. */
export type WorkerState = "starting" | "running" | "freezing" | "quarantined" | "ended";

/** A worker as an operator sees it. */
export type WorkerView = {
  /** How long ago that was, by a clock that nobody sets; until its end where it has ended. */
  age_ms: number;
  /** How its budget stands. */
  budget: BudgetView;
  /** What it runs, shortened. */
  command?: Shown | null;
  /** Steps down from its root, which has 0. */
  depth: number;
  /** What ended it. */
  ended_by?: EndedBy | null;
  /** Milliseconds until it is ended; absent where nothing ends it. */
  expires_in_ms?: number | null;
  /** Its name. */
  id: WorkerId;
  /** Milliseconds since it last said that it lives; absent where it never did. */
  last_heartbeat_ms?: number | null;
  /** Who asked for it; absent for a root. */
  parent?: WorkerId | null;
  /** When it was granted. */
  started_at_ms: number;
  /** What it is doing. */
  state: WorkerState;
};

/** Who may ask for what, as the supervisor's table of routes says. */
export const ROLES = {
  ListAgents: "viewer",
  StartAgent: "operator",
  ReadAgent: "viewer",
  ReadOutput: "viewer",
  ListProcesses: "viewer",
  RestartAgent: "operator",
  StopAgent: "operator",
  ListAlerts: "viewer",
  ResolveAlerts: "operator",
  AcknowledgeAlert: "operator",
  ResolveAlert: "operator",
  AcknowledgeClock: "admin",
  ReadContract: "viewer",
  StartDeclared: "operator",
  BumpEpoch: "admin",
  ListEvents: "viewer",
  ListHolds: "viewer",
  AnswerHold: "operator",
  ReadKillSwitch: "viewer",
  EngageKillSwitch: "operator",
  ResetKillSwitch: "admin",
  ReadLedger: "viewer",
  ListEntries: "viewer",
  ProveEntry: "viewer",
  VerifyLedger: "operator",
  ReadMetrics: "viewer",
  ListProposals: "viewer",
  ReadProposal: "viewer",
  Reload: "admin",
  Revoke: "admin",
  ShutDown: "admin",
  ListSilences: "viewer",
  CreateSilence: "operator",
  EndSilence: "operator",
  ReadStatus: "viewer",
  ReadTree: "viewer",
  ListWorkers: "viewer",
  Kill: "operator",
  Quarantine: "operator",
  Release: "operator",
} as const;

/** Every word of the types that are words. */
export const WORDS = {
  AgentPhase: ["starting","running","freezing","quarantined","stopping","waiting","crash_loop","ended"],
  AlertKind: ["HighResourceUsage","SuspiciousToolUsage","UnauthorizedAccess","NetworkAnomaly","PrivilegeEscalation","AgentCrashed","AgentQuarantined","BudgetExceeded","ReplicationDenied","KillSwitchEngaged","LedgerFailure","ApprovalWaiting","StorageFailure"],
  AlertState: ["open","acknowledged","resolved"],
  ChangeOfAgent: ["added","removed","changed"],
  ClockState: ["steady","went_back"],
  CodeTint: ["plain","keyword","text","comment","number"],
  DeclaredState: ["pending","refused","stopped"],
  DenialKind: ["network","system_call","limit","replication","tool"],
  EndCause: ["finished","crashed","out_of_memory","limit","stopped","killed","keeper_lost","never_started"],
  EventKind: ["started","ended","restarting","egress_refused","system_call_refused","limit_met","replicated","replication_denied","quarantined","released","killed","kill_switch_engaged","kill_switch_reset","budget_exceeded","tool_refused","tool_held","alert","responded","ledger","daemon"],
  OnParentExit: ["keep","kill"],
  OnTrigger: ["deny","quarantine","kill"],
  OutputStream: ["stdout","stderr"],
  ProposalRisk: ["low","medium","high","critical"],
  ProposalStatus: ["draft","checking","rejected","waiting","approved","deployed","rolled_back"],
  Response: ["notify","freeze","quarantine","kill","kill_subtree"],
  RestartPolicy: ["never","on_failure","always"],
  Severity: ["info","warning","critical"],
  StageVerdict: ["pass","fail","not_asked"],
  WorkerState: ["starting","running","freezing","quarantined","ended"],
} as const;
