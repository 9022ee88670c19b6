/** A made-up fleet: agents that come, use, spend, are refused things and end. */
import type { AgentPhase, AgentView, Denial, EventView, ProcessView, Sample } from "../src/api.ts";
import { HOSTILE_NAMES } from "./hostile.ts";
import type { Random } from "./random.ts";

const MB = 1024 * 1024;
const NAMES = [
  "triage",
  "scraper",
  "refactor",
  "reviewer",
  "planner",
  "indexer",
  "summariser",
  "migrator",
  "fuzzer",
  "librarian",
];
const COMMANDS = [
  "python3 agent.py --task triage",
  "node worker.mjs --queue inbox",
  "python3 -m crawler --depth 2",
  "claude -p 'tidy the changelog'",
  "cargo run --release -- review",
];
const CAPABILITIES = ["moderate", "strict", "examples/coding-agent.yaml", "permissive"];

export const POLICY = `extends: moderate

resource_limits:
  max_memory_mb: 512
  max_cpu_seconds: 3600.0
  max_cost_usd: 5.0
  max_tokens: 2000000

network_egress_rules:
  - domain: "api.anthropic.com"
    ports: [443]

filesystem_config:
  workspace: overlay
`;

/** How an agent behaves: where its use tends to, and what pushes it about. */
export interface Agent {
  view: AgentView;
  readonly base: { readonly cpu: number; readonly memory: number };
  readonly denials: Denial[];
  output: string;
}

export function makeAgent(
  random: Random,
  number: number,
  now: number,
  options: { name?: string; command?: string; parent?: AgentView | undefined; hostile?: boolean } = {},
): Agent {
  const hostile = options.hostile ? HOSTILE_NAMES[number % HOSTILE_NAMES.length] : undefined;
  const name = options.name ?? hostile ?? `${random.pick(NAMES)}-${(number + 1).toString().padStart(3, "0")}`;
  const command = options.command ?? hostile ?? random.pick(COMMANDS);
  const isBusy = command.includes("while");
  const age = options.name === undefined ? random.between(30_000, 26 * 3_600_000) : 0;
  const usdGrant = random.pick([500_000, 2_000_000, 5_000_000, 10_000_000]);
  const spent = options.name === undefined ? Math.round(usdGrant * random.next() ** 2 * 1.02) : 0;
  const limited = random.next() > 0.15;
  const started = Math.round(now - age);
  return {
    base: { cpu: isBusy ? 97 : random.next() ** 3 * 90 + 0.4, memory: random.between(18, 420) * MB },
    denials: [],
    output: "",
    view: {
      id: `w${(0x1a2b3c + number * 7919).toString(36)}${number.toString(36).padStart(3, "0")}`,
      name,
      ...(options.parent === undefined ? {} : { parent: options.parent.id }),
      depth: options.parent === undefined ? 0 : options.parent.depth + 1,
      phase: "running",
      since_ms: started,
      started_at_ms: started,
      restarts: 0,
      command,
      capability: random.pick(CAPABILITIES),
      usage: {
        cpu_percent: 0,
        cpu_ms: Math.round(age / 40),
        memory_bytes: 20 * MB,
        processes: random.whole(1, 14),
        read_bytes: random.whole(1, 900) * MB,
        written_bytes: random.whole(0, 200) * MB,
        sent_bytes: random.whole(0, 12) * MB,
        received_bytes: random.whole(0, 80) * MB,
        tokens: Math.round(spent / 3),
        micro_usd: spent,
      },
      limits: { memory_bytes: 512 * MB, cpu_percent: 100, processes: 64, ...(limited ? { tokens: 2_000_000 } : {}) },
      budget: {
        granted: limited ? { micro_usd: usdGrant, tokens: Math.round(usdGrant / 2.5), replicas: 8 } : {},
        own: limited ? { micro_usd: usdGrant } : {},
        reserved: { replicas: 0 },
        spent: { micro_usd: spent, tokens: Math.round(spent / 3) },
        available: {},
      },
      open_alerts: 0,
    },
  };
}

/** A second later. A frozen agent keeps its memory and uses nothing else. */
export function live(agent: Agent, random: Random, seconds: number): void {
  const { view, base } = agent;
  if (view.phase === "ended" || view.phase === "crash_loop" || view.phase === "waiting") return;
  const usage = { ...view.usage };
  const frozen = view.phase === "quarantined";
  const drift = (was: number, to: number, by: number) => was + (to - was) * 0.25 + (random.next() - 0.5) * by;
  usage.cpu_percent = frozen ? 0 : Math.min(100, Math.max(0, drift(usage.cpu_percent, base.cpu, base.cpu * 0.7)));
  if (!frozen) {
    usage.memory_bytes = Math.round(
      Math.min(500 * MB, Math.max(4 * MB, drift(usage.memory_bytes, base.memory, base.memory * 0.05))),
    );
    usage.cpu_ms += Math.round(usage.cpu_percent * 10 * seconds);
    const burst = random.next() < 0.3 ? random.between(0, 60_000) : random.between(0, 900);
    usage.received_bytes += Math.round(burst * seconds);
    usage.sent_bytes += Math.round(burst * 0.2 * seconds);
    const tokens = random.next() < 0.12 ? random.whole(40, 900) : 0;
    usage.tokens += tokens;
    usage.micro_usd += tokens * 3;
  }
  agent.view = { ...view, usage };
}

export function end(agent: Agent, now: number, cause: NonNullable<AgentView["end"]>["cause"], detail: string): void {
  agent.view = {
    ...agent.view,
    phase: "ended",
    since_ms: now,
    usage: { ...agent.view.usage, cpu_percent: 0, processes: 0, memory_bytes: 0 },
    end: {
      cause,
      at_ms: now,
      detail,
      ...(cause === "killed" ? { signal: 9 } : { exit_code: cause === "crashed" ? 1 : 0 }),
    },
  };
}

export function setPhase(agent: Agent, phase: AgentPhase, now: number): void {
  agent.view = { ...agent.view, phase, since_ms: now };
}

export function denials(random: Random, now: number): Denial[] {
  const all: Denial[] = [
    {
      kind: "network",
      code: "deny_host",
      what: "telemetry.example.net:443",
      count: 41,
      last_at_ms: now - 3000,
      why: "No rule allows this host.",
      allow_with: "network_egress_rules: [{domain: telemetry.example.net, ports: [443]}]",
    },
    {
      kind: "network",
      code: "deny_port",
      what: "github.com:22",
      count: 2,
      last_at_ms: now - 190_000,
      why: "The host is allowed on port 443 only.",
      allow_with: "network_egress_rules: [{domain: github.com, ports: [22, 443]}]",
    },
    {
      kind: "system_call",
      code: "deny_syscall",
      what: "mount",
      count: 1,
      last_at_ms: now - 640_000,
      why: "No agent may mount a file system.",
    },
    {
      kind: "limit",
      code: "limit_processes",
      what: "processes",
      count: 12,
      last_at_ms: now - 4_000_000,
      why: "It has 64 processes, which is the most it may have.",
      allow_with: "resource_limits: {max_processes: 128}",
    },
    {
      kind: "tool",
      code: "deny_tool",
      what: "shell:execute",
      count: 3,
      last_at_ms: now - 9_000_000,
      why: "The tool is blocked.",
      allow_with: "tools: {allow: [shell:execute]}",
    },
  ];
  return all.slice(0, random.whole(1, all.length));
}

export function processes(agent: Agent, random: Random): ProcessView[] {
  const first = 20_000 + agent.view.id.length * 31;
  return Array.from({ length: Math.min(agent.view.usage.processes, 40) }, (_, at) => ({
    pid: first + at * 3,
    parent: at === 0 ? first - 1 : first,
    command:
      at === 0
        ? agent.view.command
        : random.pick(["sh -c 'make check'", "git status --porcelain", "node --version", "python3 tool.py"]),
    state: agent.view.phase === "quarantined" ? "T" : at === 0 ? "R" : "S",
    cpu_ms: Math.round(agent.view.usage.cpu_ms / (at + 1)),
    memory_bytes: Math.round(agent.view.usage.memory_bytes / (at + 2)),
    threads: at === 0 ? 4 : 1,
  }));
}

/** A history that ends where the agent is now. */
export function history(
  agent: AgentView | undefined,
  since: number,
  until: number,
  points: number,
  random: Random,
): { every_ms: number; samples: Sample[] } {
  const every_ms = Math.max(1000, Math.ceil((until - since) / points / 1000) * 1000);
  const from = Math.max(since, agent?.started_at_ms ?? since);
  const samples: Sample[] = [];
  let cpu = agent?.usage.cpu_percent ?? 300;
  let memory = agent?.usage.memory_bytes ?? 9e9;
  for (let at = until; at >= from; at -= every_ms) {
    const burst = random.next() < 0.15 ? 40_000 : 800;
    const tokens = random.next() < 0.12 ? random.whole(40, 900) : 0;
    samples.push({
      at_ms: at,
      cpu_percent: cpu,
      memory_bytes: Math.round(memory),
      processes: agent?.usage.processes ?? 400,
      read_rate: burst / 3,
      write_rate: burst / 7,
      send_rate: random.next() * burst * 0.2,
      receive_rate: random.next() * burst,
      tokens,
      micro_usd: tokens * 3,
    });
    cpu = Math.min(agent === undefined ? 4000 : 100, Math.max(0, cpu + (random.next() - 0.5) * 9));
    memory = Math.max(4 * MB, memory * (1 + (random.next() - 0.5) * 0.03));
  }
  return { every_ms, samples: samples.reverse() };
}

/** Something that happened to an agent, as it happens in a fleet at work. */
export function happening(random: Random, agent: AgentView | undefined): Omit<EventView, "id" | "at_ms"> {
  const about = agent === undefined ? {} : { agent: agent.id };
  return random.pick<Omit<EventView, "id" | "at_ms">>([
    { ...about, kind: "started", severity: "info", text: "its program runs" },
    {
      ...about,
      kind: "egress_refused",
      severity: "warning",
      text: "telemetry.example.net:443 was refused",
      code: "deny_host",
      hint: "network_egress_rules: [{domain: telemetry.example.net, ports: [443]}]",
    },
    { ...about, kind: "egress_refused", severity: "info", text: "pypi.org:443 was refused", code: "deny_host" },
    { ...about, kind: "system_call_refused", severity: "critical", text: "mount was refused", code: "deny_syscall" },
    {
      ...about,
      kind: "limit_met",
      severity: "warning",
      text: "64 processes, which is the most it may have",
      code: "limit_processes",
    },
    { ...about, kind: "replicated", severity: "info", text: "a replica was granted" },
    {
      ...about,
      kind: "replication_denied",
      severity: "warning",
      text: "the quota of replicas is used up",
      code: "deny_quota",
    },
    { ...about, kind: "ended", severity: "info", text: "it ended with success" },
    { ...about, kind: "tool_refused", severity: "warning", text: "shell:execute was refused", code: "deny_tool" },
  ]);
}
