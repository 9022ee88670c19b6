/** What the fleet page does with agents: which, in which order, and what they come to. */
import type { AgentPhase, AgentView } from "../api.ts";

export type SortKey = "worst" | "name" | "phase" | "cpu" | "memory" | "processes" | "spent" | "started" | "alerts";

export interface Order {
  readonly key: SortKey;
  readonly down: boolean;
}

export interface Wanted {
  /** Words that all have to be in the name, the id, the command or the capability. */
  readonly search: string;
  /** Live agents, all of them, or those of one phase. */
  readonly phase: AgentPhase | "live" | "all";
  /** Only agents with open alerts. */
  readonly alerted: boolean;
}

// What needs a person comes first.
const PHASE_ORDER: Record<AgentPhase, number> = {
  crash_loop: 0,
  freezing: 1,
  quarantined: 1,
  stopping: 2,
  waiting: 3,
  starting: 4,
  running: 5,
  ended: 6,
};

/** Whether something of it may still run. */
export function isLive(agent: AgentView): boolean {
  return agent.phase !== "ended" && agent.phase !== "crash_loop";
}

/** Whether it has a box with processes in it now. */
export function hasBox(agent: AgentView): boolean {
  return isLive(agent) && agent.phase !== "waiting";
}

export function select(agents: Iterable<AgentView>, wanted: Wanted): AgentView[] {
  const sought = wanted.search.toLowerCase().split(/\s+/).filter(Boolean);
  const found: AgentView[] = [];
  for (const agent of agents) {
    if (wanted.alerted && agent.open_alerts === 0) continue;
    if (!isWantedPhase(agent, wanted.phase)) continue;
    if (sought.length > 0) {
      const text = `${agent.name}\n${agent.id}\n${agent.command}\n${agent.capability}`.toLowerCase();
      if (!sought.every((word) => text.includes(word))) continue;
    }
    found.push(agent);
  }
  return found;
}

function isWantedPhase(agent: AgentView, phase: Wanted["phase"]): boolean {
  // An agent that loops is over, but it is the one to look at.
  if (phase === "live") return agent.phase !== "ended";
  return phase === "all" || agent.phase === phase;
}

/** Sorts in place. Equals stay in the order of their ids, so that rows don't trade places with every sample. */
export function sort(agents: AgentView[], order: Order): AgentView[] {
  const sign = order.down ? -1 : 1;
  return agents.sort((a, b) => sign * compare(a, b, order.key) || (a.id < b.id ? -1 : a.id > b.id ? 1 : 0));
}

function compare(a: AgentView, b: AgentView, key: SortKey): number {
  switch (key) {
    case "name":
      return a.name < b.name ? -1 : a.name > b.name ? 1 : 0;
    case "phase":
      return PHASE_ORDER[a.phase] - PHASE_ORDER[b.phase];
    case "cpu":
      return a.usage.cpu_percent - b.usage.cpu_percent;
    case "memory":
      return a.usage.memory_bytes - b.usage.memory_bytes;
    case "processes":
      return a.usage.processes - b.usage.processes;
    case "spent":
      return a.usage.micro_usd - b.usage.micro_usd || a.usage.tokens - b.usage.tokens;
    case "started":
      return a.started_at_ms - b.started_at_ms;
    case "alerts":
      return a.open_alerts - b.open_alerts;
    case "worst":
      return trouble(a) - trouble(b) || b.open_alerts - a.open_alerts || b.started_at_ms - a.started_at_ms;
  }
}

/** How much an agent needs a person: 0 is the most. */
function trouble(agent: AgentView): number {
  const phase = PHASE_ORDER[agent.phase];
  const isCalm = phase > PHASE_ORDER.quarantined && agent.phase !== "ended";
  return isCalm && agent.open_alerts > 0 ? 1.5 : phase;
}

export interface Totals {
  agents: number;
  live: number;
  cpu_percent: number;
  memory_bytes: number;
  processes: number;
  tokens: number;
  micro_usd: number;
  readonly phases: Record<AgentPhase, number>;
}

export function totals(agents: Iterable<AgentView>): Totals {
  const sum: Totals = {
    agents: 0,
    live: 0,
    cpu_percent: 0,
    memory_bytes: 0,
    processes: 0,
    tokens: 0,
    micro_usd: 0,
    phases: { starting: 0, running: 0, freezing: 0, quarantined: 0, stopping: 0, waiting: 0, crash_loop: 0, ended: 0 },
  };
  for (const agent of agents) {
    sum.agents += 1;
    sum.phases[agent.phase] += 1;
    sum.tokens += agent.usage.tokens;
    sum.micro_usd += agent.usage.micro_usd;
    if (!isLive(agent)) continue;
    sum.live += 1;
    sum.cpu_percent += agent.usage.cpu_percent;
    sum.memory_bytes += agent.usage.memory_bytes;
    sum.processes += agent.usage.processes;
  }
  return sum;
}

export interface Share {
  readonly label: string;
  readonly used: number;
  readonly of: number;
}

/** What an agent's budget and limits leave it, as far as something limits it: the tightest share first. */
export function budgetShares(agent: AgentView): Share[] {
  const { budget, limits, usage } = agent;
  // What a child uses is the parent's expense too: what is spent for good, or what the box itself has used.
  const shares: Array<Share | undefined> = [
    share("USD", Math.max(usage.micro_usd, budget.spent.micro_usd ?? 0), budget.granted.micro_usd ?? limits.micro_usd),
    share("Tokens", Math.max(usage.tokens, budget.spent.tokens ?? 0), budget.granted.tokens ?? limits.tokens),
    share("CPU time", Math.max(usage.cpu_ms, budget.spent.cpu_ms ?? 0), budget.granted.cpu_ms ?? limits.cpu_ms),
    share("Replicas", budget.reserved.replicas ?? 0, budget.granted.replicas),
  ];
  return shares.filter((one) => one !== undefined).sort((a, b) => part(b) - part(a));
}

function share(label: string, used: number, of: number | null | undefined): Share | undefined {
  return of === null || of === undefined ? undefined : { label, used, of };
}

/** From 0 to 1; a budget of nothing is spent. */
export function part(one: Share): number {
  return one.of <= 0 ? 1 : Math.min(1, one.used / one.of);
}
