/** A supervisor that is made up, but answers as the real one does: same routes, same types, same roles. For design and for tests of the page alone. */
import { randomUUID } from "node:crypto";
import type {
  AgentView,
  AlertView,
  EventView,
  HoldView,
  KillReport,
  LedgerEntry,
  LedgerReport,
  ProposalDetail,
  Severity,
  SilenceView,
  StatusView,
} from "../src/api.ts";
import type { LiveMessage } from "../src/lib/live.ts";
import { type Agent, denials, end, happening, live, makeAgent, setPhase } from "./fleet.ts";
import { HOSTILE_NAMES, HOSTILE_OUTPUT } from "./hostile.ts";
import { makeProposals } from "./proposals.ts";
import { Random } from "./random.ts";

export interface Settings {
  readonly agents: number;
  readonly hostile: boolean;
  readonly seed: number;
  /** Milliseconds between samples. */
  readonly every: number;
  /** Whether things happen by themselves. */
  readonly eventful: boolean;
}

export const DEFAULTS: Settings = { agents: 24, hostile: false, seed: 7, every: 1000, eventful: true };

export class DevSupervisor {
  readonly random: Random;
  readonly agents = new Map<string, Agent>();
  readonly alerts = new Map<string, AlertView>();
  readonly holds = new Map<string, HoldView>();
  silences: SilenceView[] = [];
  proposals: ProposalDetail[] = [];
  events: EventView[] = [];
  readonly entries: LedgerEntry[] = [];
  verified: { word: string; at: number } | undefined;
  readonly #listeners = new Set<(message: LiveMessage) => void>();
  readonly #started = Date.now();
  #made = 0;
  #engaged: { reason: string; since_ms: number } | undefined;
  #timer: ReturnType<typeof setInterval> | undefined;

  constructor(readonly settings: Settings) {
    this.random = new Random(settings.seed);
    const now = Date.now();
    for (let number = 0; number < settings.agents; number += 1) this.#populate(now);
    for (const agent of this.agents.values())
      for (let second = 0; second < 20; second += 1) live(agent, this.random, 1);
    if (settings.agents > 0) this.#past(now);
    if (settings.hostile) this.#hostileRecords();
    if (settings.agents > 0) this.proposals = makeProposals(now, settings.hostile);
    if (settings.agents > 0) this.#hold(now, settings.hostile ? (HOSTILE_NAMES[0] ?? "") : "move_file");
  }

  #hold(now: number, tool: string): void {
    this.holds.set("4be1a09c22d7", {
      id: "4be1a09c22d7",
      run: "a1",
      server: "files",
      tool,
      arguments: JSON.stringify({ source: "/work/a", destination: `/work/${tool}` }),
      code: "hold_tool",
      rule: "capability.yaml:14",
      opened_at_ms: now - 4000,
      deadline_ms: now + 3_600_000,
    });
  }

  /** Takes a held call away, and tells. */
  answerHold(id: string): HoldView | undefined {
    const hold = this.holds.get(id);
    this.holds.delete(id);
    const message: LiveMessage = { is: "holds", data: [...this.holds.values()] };
    for (const listener of this.#listeners) listener(message);
    return hold;
  }

  start(): void {
    this.#timer = setInterval(() => this.#tick(), this.settings.every);
  }

  stop(): void {
    clearInterval(this.#timer);
  }

  subscribe(listener: (message: LiveMessage) => void): () => void {
    this.#listeners.add(listener);
    listener({ is: "agents", data: this.views() });
    listener({ is: "holds", data: [...this.holds.values()] });
    listener({ is: "status", data: this.status() });
    return () => this.#listeners.delete(listener);
  }

  views(): AgentView[] {
    return [...this.agents.values()].map((agent) => agent.view);
  }

  status(): StatusView {
    const phases = this.views().map((agent) => agent.phase);
    const many = (phase: string) => phases.filter((one) => one === phase).length;
    return {
      version: "dev",
      started_at_ms: this.#started,
      uptime_ms: Date.now() - this.#started,
      workers: {
        starting: many("starting"),
        running: many("running"),
        quarantined: many("quarantined"),
        ended: many("ended"),
      },
      kill_switch: this.#engaged === undefined ? {} : { engaged: this.#engaged },
      epoch: 1,
      clock: { state: "steady", high_water_ms: Date.now() },
      ledger: { entries: this.entries.length },
    };
  }

  get isEngaged(): boolean {
    return this.#engaged !== undefined;
  }

  startAgent(name: string, command: readonly string[]): AgentView {
    const agent = makeAgent(this.random, this.#made, Date.now(), { name, command: command.join(" ") });
    this.#made += 1;
    this.agents.set(agent.view.id, agent);
    this.record("launch", { worker: agent.view.id, name });
    this.happened({ agent: agent.view.id, kind: "started", severity: "info", text: "its program runs" });
    this.#tell({ is: "agents", data: [agent.view] });
    return agent.view;
  }

  change(agent: Agent, phase: "running" | "quarantined", reason: string): void {
    setPhase(agent, phase, Date.now());
    const word = phase === "running" ? "released" : "quarantined";
    this.record(word, { worker: agent.view.id, reason });
    this.happened({
      agent: agent.view.id,
      kind: word,
      severity: phase === "running" ? "info" : "warning",
      text: reason,
    });
    this.#tell({ is: "agents", data: [agent.view] });
  }

  endAgent(agent: Agent, cause: "stopped" | "killed", reason: string): void {
    end(agent, Date.now(), cause, reason);
    this.record(cause, { worker: agent.view.id, reason });
    this.happened({
      agent: agent.view.id,
      kind: cause === "killed" ? "killed" : "ended",
      severity: "warning",
      text: reason,
    });
    this.#tell({ is: "agents", data: [agent.view] });
  }

  /** Ends an agent and, where asked, all below it. */
  kill(agent: Agent, reason: string, subtree: boolean): KillReport {
    const doomed = [agent];
    for (const one of doomed) {
      if (!subtree) break;
      doomed.push(...[...this.agents.values()].filter((other) => other.view.parent === one.view.id));
    }
    const living = doomed.filter((one) => one.view.phase !== "ended");
    for (const one of living) this.endAgent(one, "killed", reason);
    return {
      killed: living.length,
      boxes: living.length,
      survivors: 0,
      elapsed_us: 840 + living.length * 90,
      entry: this.entries.length - 1,
    };
  }

  /** Ends all, a few at a time, so that the count can be watched going down. */
  async engage(reason: string): Promise<KillReport> {
    const now = Date.now();
    this.#engaged = { reason, since_ms: now };
    this.#tell({ is: "status", data: this.status() });
    const doomed = [...this.agents.values()].filter((agent) => agent.view.phase !== "ended");
    for (let at = 0; at < doomed.length; at += 4) {
      for (const agent of doomed.slice(at, at + 4)) this.endAgent(agent, "killed", "kill switch");
      await new Promise((resolve) => setTimeout(resolve, 40));
    }
    this.record("kill_switch_engaged", { reason });
    this.happened({ kind: "kill_switch_engaged", severity: "critical", text: reason });
    this.raise("KillSwitchEngaged", "critical", undefined, reason);
    this.#tell({ is: "status", data: this.status() });
    return {
      killed: doomed.length,
      boxes: doomed.length,
      survivors: 0,
      elapsed_us: (Date.now() - now) * 1000,
      entry: this.entries.length - 1,
    };
  }

  reset(reason: string): void {
    this.#engaged = undefined;
    this.record("kill_switch_reset", { reason });
    this.happened({ kind: "kill_switch_reset", severity: "info", text: reason });
    this.#tell({ is: "status", data: this.status() });
  }

  silence(silence: Omit<SilenceView, "id" | "since_ms">): SilenceView {
    const made = { ...silence, id: `${this.silences.length + 1}`, since_ms: Date.now() };
    this.silences = [made, ...this.silences];
    this.#lookAtSilences();
    return made;
  }

  endSilence(id: string): SilenceView | undefined {
    const found = this.silences.find((one) => one.id === id);
    this.silences = this.silences.filter((one) => one.id !== id);
    this.#lookAtSilences();
    return found;
  }

  #lookAtSilences(): void {
    for (const alert of this.alerts.values()) {
      const silenced = this.silences.some(
        (one) => (!one.kind || one.kind === alert.kind) && (!one.agent || one.agent === alert.agent_name),
      );
      if (silenced === (alert.silenced ?? false)) continue;
      const next = { ...alert, silenced };
      this.alerts.set(alert.id, next);
      this.#tell({ is: "alert", data: next });
    }
  }

  changeAlert(alert: AlertView, state: "acknowledged" | "resolved", by: string, reason?: string): AlertView {
    const next: AlertView = { ...alert, state, by, ...(reason === undefined ? {} : { reason }) };
    this.alerts.set(alert.id, next);
    const agent = alert.agent ? this.agents.get(alert.agent) : undefined;
    if (agent !== undefined && state === "resolved") {
      agent.view = { ...agent.view, open_alerts: Math.max(0, agent.view.open_alerts - 1) };
      this.#tell({ is: "agents", data: [agent.view] });
    }
    this.#tell({ is: "alert", data: next });
    return next;
  }

  raise(
    kind: AlertView["kind"],
    severity: Severity,
    agent: Agent | undefined,
    text: string,
    more: Partial<AlertView> = {},
  ): void {
    const now = Date.now();
    const alert: AlertView = {
      id: `a${this.alerts.size + 1}`,
      kind,
      severity,
      ...(agent === undefined ? {} : { agent: agent.view.id, agent_name: agent.view.name }),
      text,
      state: "open",
      opened_at_ms: now,
      last_at_ms: now,
      count: 1,
      responses: [],
      ...more,
    };
    this.alerts.set(alert.id, alert);
    if (agent !== undefined) {
      agent.view = { ...agent.view, open_alerts: agent.view.open_alerts + 1 };
      this.#tell({ is: "agents", data: [agent.view] });
    }
    this.#tell({ is: "alert", data: alert });
  }

  happened(event: Omit<EventView, "id" | "at_ms">, at_ms = Date.now()): void {
    const made: EventView = { id: (this.events[0]?.id ?? 0) + 1, at_ms, ...event };
    this.events = [made, ...this.events].slice(0, 5000);
    this.#tell({ is: "event", data: made });
  }

  record(kind: string, fields: Record<string, unknown>): void {
    this.entries.push({
      index: this.entries.length,
      entry: { v: 1, at: { wall_ms: Date.now() }, what: { kind, ...fields } },
    });
  }

  ledger(): LedgerReport {
    return {
      entries: this.entries.length,
      checkpoint: `belljar.example/ledger\n${this.entries.length}\nq3J5c0l4b2dZ0m1u7C6m1yVtqK8w2l0Zc1f3bq8V5nE=\n\n— belljar.example/ledger Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n`,
      key: "belljar.example/ledger+c67f1a2b+AcUk1x0nQ7b2cN8xv0dE9p4hYk3tRzq5mJwS6aLfGdTo",
      verified: this.verified?.word ?? "not_checked",
      ...(this.verified === undefined ? {} : { verified_at_ms: this.verified.at }),
    };
  }

  proof(index: number): string {
    return `c2sp.org/tlog-proof@v1\nindex ${index}\nq3J5c0l4b2dZ0m1u7C6m1yVtqK8w2l0Zc1f3bq8V5nE=\nZ0m1u7C6m1yVtqK8w2l0Zc1f3bq8V5nEq3J5c0l4b2c=\n\n${this.ledger().checkpoint}`;
  }

  #populate(now: number): void {
    const all = [...this.agents.values()];
    const parent = all.length > 2 && this.random.next() < 0.55 ? this.random.pick(all).view : undefined;
    const agent = makeAgent(this.random, this.#made, now, {
      parent: parent !== undefined && parent.depth < 6 ? parent : undefined,
      hostile: this.settings.hostile,
    });
    this.#made += 1;
    this.agents.set(agent.view.id, agent);
    agent.denials.push(...(this.random.next() < 0.7 ? denials(this.random, now) : []));
    agent.output = this.settings.hostile ? HOSTILE_OUTPUT : transcript(this.random);
    const luck = this.random.next();
    if (luck < 0.06) setPhase(agent, "quarantined", now - 90_000);
    else if (luck < 0.09) setPhase(agent, "crash_loop", now - 40_000);
    else if (luck < 0.12) agent.view = { ...agent.view, phase: "waiting", restarts: 3, restart_at_ms: now + 3_600_000 };
    else if (luck < 0.2) end(agent, now - 60_000, this.random.pick(["finished", "crashed", "out_of_memory"]), "");
    this.record("launch", { worker: agent.view.id, name: agent.view.name, capability: agent.view.capability });
  }

  #past(now: number): void {
    const all = [...this.agents.values()];
    for (let ago = 120; ago > 0; ago -= 1)
      this.happened(happening(this.random, this.random.pick(all).view), now - ago * 47_000);
    const about = all.filter((agent) => agent.view.phase !== "ended");
    const pick = () => this.random.pick(about.length > 0 ? about : all);
    this.raise("PrivilegeEscalation", "critical", pick(), "mount was tried, which only serves to gain power", {
      hint: "Look at its processes and output, then kill it or release it.",
      responses: [
        { response: "quarantine", at_ms: now },
        { response: "notify", at_ms: now, failed: "the webhook did not answer within 5 s" },
      ],
      last_at_ms: now - 44_000,
    });
    this.raise("NetworkAnomaly", "warning", pick(), "41 hosts were refused within one minute", {
      count: 41,
      hint: "Add the host to the policy or find out why it asks.",
      last_at_ms: now - 121_000,
    });
    this.raise("BudgetExceeded", "warning", pick(), "its budget of $2.00 is spent", {
      last_at_ms: now - 900_000,
      state: "acknowledged",
      by: "mira",
    });
    this.raise("HighResourceUsage", "info", pick(), "memory above 90 % of its limit for two minutes", {
      count: 3,
      last_at_ms: now - 1_800_000,
    });
    this.raise("AgentCrashed", "warning", pick(), "it ended with exit code 1, five times in a minute", {
      state: "resolved",
      by: "belljar",
      last_at_ms: now - 7_200_000,
    });
  }

  #hostileRecords(): void {
    const all = [...this.agents.values()];
    for (const [at, text] of HOSTILE_NAMES.entries()) {
      this.happened({
        agent: all[at % all.length]?.view.id ?? "w1",
        kind: "tool_refused",
        severity: "warning",
        text,
        code: text.slice(0, 30),
        hint: text,
      });
      this.raise("SuspiciousToolUsage", "warning", all[at % all.length], text, { hint: text, by: text });
      this.record("tool_refused", { description: text });
    }
    for (const agent of all)
      agent.denials.push(
        ...HOSTILE_NAMES.map((what) => ({
          kind: "tool" as const,
          code: what.slice(0, 20),
          what,
          count: 1,
          last_at_ms: Date.now(),
          why: what,
          allow_with: what,
        })),
      );
  }

  #tick(): void {
    for (const agent of this.agents.values()) {
      live(agent, this.random, this.settings.every / 1000);
      if (agent.view.phase === "running" && this.random.next() < 0.4 && !this.settings.hostile)
        agent.output += this.random.pick(LINES);
    }
    this.#tell({ is: "agents", data: this.views().filter((view) => view.phase !== "ended") });
    if (this.settings.eventful && this.agents.size > 0 && this.random.next() < 0.25 && !this.isEngaged) {
      this.happened(happening(this.random, this.random.pick([...this.agents.values()]).view));
    }
  }

  #tell(message: LiveMessage): void {
    for (const listener of this.#listeners) listener(message);
  }
}

const LINES = [
  "[plan] read the open issues, oldest first\n",
  "[tool] git log --oneline -20\n",
  "[model] 412 tokens in, 96 out\n",
  "[tool] pytest -q tests/test_parser.py\n....................  [100%]\n20 passed in 1.42s\n",
  "[net] GET https://api.anthropic.com/v1/models 200\n",
  "[net] telemetry.example.net: refused (deny_host)\n",
];

function transcript(random: Random): string {
  return Array.from({ length: 60 }, () => random.pick(LINES)).join("");
}

export function newSecret(): string {
  return randomUUID().replaceAll("-", "");
}
