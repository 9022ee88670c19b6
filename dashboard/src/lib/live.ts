/** What the page knows, folded from the live stream. Pure: no clock, no network. */
import type { AgentView, AlertView, EventView, HoldView, Sample, StatusView } from "../api.ts";
import { Ring } from "./ring.ts";

/** Samples a sparkline shows. */
export const SPARK_SLOTS = 60;
/** Events the page keeps without asking. */
const MOST_EVENTS = 500;

export type LiveMessage =
  | { readonly is: "agents"; readonly data: readonly AgentView[] }
  | { readonly is: "forgotten"; readonly data: readonly string[] }
  | { readonly is: "event"; readonly data: EventView }
  | { readonly is: "alert"; readonly data: AlertView }
  | { readonly is: "holds"; readonly data: readonly HoldView[] }
  | { readonly is: "status"; readonly data: StatusView }
  | { readonly is: "lost" };

export interface Trace {
  readonly cpu: Ring;
  readonly memory: Ring;
}

export class Live {
  readonly agents = new Map<string, AgentView>();
  readonly traces = new Map<string, Trace>();
  readonly alerts = new Map<string, AlertView>();
  /** The newest first. */
  events: EventView[] = [];
  /** Calls that wait for an operator, all of them; unknown until a stream told. */
  holds: readonly HoldView[] | undefined;
  status: StatusView | undefined;
  /** Whether the fleet is known: the first message of a stream holds all agents. */
  hasFleet = false;
  #isFirst = true;

  /** A new stream begins: its first message about agents replaces all of them. */
  begin(): void {
    this.#isFirst = true;
  }

  apply(message: LiveMessage): void {
    switch (message.is) {
      case "agents":
        if (this.#isFirst) this.#keepOnly(new Set(message.data.map((agent) => agent.id)));
        this.#isFirst = false;
        this.hasFleet = true;
        for (const agent of message.data) this.#see(agent);
        break;
      case "forgotten":
        for (const id of message.data) this.#forget(id);
        break;
      case "event":
        // A stream that was resumed may tell an event again.
        if (!this.events.some((event) => event.id === message.data.id)) {
          this.events = [message.data, ...this.events].slice(0, MOST_EVENTS);
        }
        break;
      case "alert":
        this.alerts.set(message.data.id, message.data);
        break;
      case "holds":
        this.holds = message.data;
        break;
      case "status":
        this.status = message.data;
        break;
      case "lost":
        break;
    }
  }

  #see(agent: AgentView): void {
    this.agents.set(agent.id, agent);
    let trace = this.traces.get(agent.id);
    if (trace === undefined) {
      trace = { cpu: new Ring(SPARK_SLOTS), memory: new Ring(SPARK_SLOTS) };
      this.traces.set(agent.id, trace);
    }
    trace.cpu.push(agent.usage.cpu_percent);
    trace.memory.push(agent.usage.memory_bytes);
  }

  #forget(id: string): void {
    this.agents.delete(id);
    this.traces.delete(id);
  }

  #keepOnly(ids: ReadonlySet<string>): void {
    for (const id of [...this.agents.keys()]) {
      if (!ids.has(id)) this.#forget(id);
    }
  }
}

/** A sample of a graph from two views of an agent. Nothing where no time passed, or where counters began again. */
export function sampleBetween(
  before: AgentView,
  before_ms: number,
  after: AgentView,
  after_ms: number,
): Sample | undefined {
  const seconds = (after_ms - before_ms) / 1000;
  if (seconds <= 0 || before.id !== after.id) return undefined;
  const [was, is] = [before.usage, after.usage];
  const grown = (from: number, to: number) => Math.max(0, to - from);
  return {
    at_ms: after_ms,
    cpu_percent: is.cpu_percent,
    memory_bytes: is.memory_bytes,
    processes: is.processes,
    read_rate: grown(was.read_bytes, is.read_bytes) / seconds,
    write_rate: grown(was.written_bytes, is.written_bytes) / seconds,
    send_rate: grown(was.sent_bytes, is.sent_bytes) / seconds,
    receive_rate: grown(was.received_bytes, is.received_bytes) / seconds,
    tokens: grown(was.tokens, is.tokens),
    micro_usd: grown(was.micro_usd, is.micro_usd),
  };
}

/** Milliseconds until the next attempt to connect: doubled each time up to half a minute, and spread so that many pages don't come at once. */
export function backoff(attempt: number, random: number): number {
  const most = Math.min(30_000, 500 * 2 ** Math.min(attempt, 10));
  return Math.round(most / 2 + (random * most) / 2);
}
