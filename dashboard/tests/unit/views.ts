/** Agents for tests. */
import type { AgentView, HoldView } from "../../src/api.ts";

export function agent(id: string, changes: Partial<AgentView> = {}): AgentView {
  return {
    id,
    name: id,
    depth: 0,
    phase: "running",
    since_ms: 0,
    started_at_ms: 0,
    restarts: 0,
    command: "true",
    capability: "moderate",
    usage: usage(),
    limits: {},
    budget: { granted: {}, own: {}, reserved: {}, spent: {}, available: {} },
    open_alerts: 0,
    ...changes,
  };
}

export function usage(changes: Partial<AgentView["usage"]> = {}): AgentView["usage"] {
  return {
    cpu_percent: 0,
    cpu_ms: 0,
    memory_bytes: 0,
    processes: 0,
    read_bytes: 0,
    written_bytes: 0,
    sent_bytes: 0,
    received_bytes: 0,
    tokens: 0,
    micro_usd: 0,
    ...changes,
  };
}

export function hold(id: string, deadline_ms = 1000): HoldView {
  return {
    id,
    run: "r",
    server: "files",
    tool: "remove",
    arguments: "{}",
    code: "hold_tool",
    rule: "capability.yaml:7",
    opened_at_ms: 0,
    deadline_ms,
  };
}
