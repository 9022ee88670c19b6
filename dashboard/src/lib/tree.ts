/** Who asked for whom, as rows: a deep lineage needs no deep recursion. */
import type { AgentView } from "../api.ts";
import { isLive } from "./fleet.ts";

export interface TreeRow {
  readonly agent: AgentView;
  /** Steps below the first row of its tree. */
  readonly level: number;
  readonly children: number;
  /** All below it, at any depth. */
  readonly below: number;
  readonly liveBelow: number;
  /** Whether it is the last of its parent's children. */
  readonly isLast: boolean;
  /** For each step above it but the last: whether more children of that one follow, so that its line goes on. */
  readonly rails: readonly boolean[];
  readonly isOpen: boolean;
  readonly cpu_percent: number;
  readonly memory_bytes: number;
  readonly micro_usd: number;
}

/** Deeper than this, rows are not moved further to the right. */
export const MOST_RAILS = 12;

interface Pending {
  readonly agent: AgentView;
  readonly level: number;
  readonly isLast: boolean;
  readonly rails: readonly boolean[];
}

interface Sum {
  below: number;
  liveBelow: number;
  cpu: number;
  memory: number;
  usd: number;
}

/**
 * The rows to show, depth first. `closed` are those whose children are folded away. An agent whose parent is remembered no longer
 * is a root here; parents that form a ring, which no supervisor would tell of, don't hang the page.
 */
export function treeRows(agents: ReadonlyMap<string, AgentView>, closed: ReadonlySet<string>): TreeRow[] {
  const children = new Map<string, AgentView[]>();
  const roots: AgentView[] = [];
  for (const agent of agents.values()) {
    const parent = agent.parent ?? undefined;
    if (parent === undefined || parent === agent.id || !agents.has(parent)) {
      roots.push(agent);
    } else {
      const siblings = children.get(parent);
      if (siblings === undefined) children.set(parent, [agent]);
      else siblings.push(agent);
    }
  }
  roots.sort(byStart);
  for (const siblings of children.values()) siblings.sort(byStart);

  const sums = sumUp(roots, children);
  const rows: TreeRow[] = [];
  const stack: Pending[] = roots.map((agent) => ({ agent, level: 0, isLast: true, rails: [] })).reverse();
  while (stack.length > 0) {
    const next = stack.pop();
    if (next === undefined) break;
    const { agent, level, isLast, rails } = next;
    const own = children.get(agent.id) ?? [];
    const sum = sums.get(agent.id) ?? { below: 0, liveBelow: 0, cpu: 0, memory: 0, usd: 0 };
    const isOpen = !closed.has(agent.id);
    rows.push({
      agent,
      level,
      isLast,
      rails,
      isOpen,
      children: own.length,
      below: sum.below,
      liveBelow: sum.liveBelow,
      cpu_percent: sum.cpu,
      memory_bytes: sum.memory,
      micro_usd: sum.usd,
    });
    if (!isOpen) continue;
    const below = level === 0 ? [] : [...rails, !isLast].slice(0, MOST_RAILS);
    for (let at = own.length - 1; at >= 0; at -= 1) {
      const child = own[at];
      if (child !== undefined)
        stack.push({ agent: child, level: level + 1, isLast: at === own.length - 1, rails: below });
    }
  }
  return rows;
}

/** What each agent and all below it come to, from the leaves up. */
function sumUp(roots: readonly AgentView[], children: ReadonlyMap<string, AgentView[]>): Map<string, Sum> {
  const order: AgentView[] = [];
  const stack = [...roots];
  for (let agent = stack.pop(); agent !== undefined; agent = stack.pop()) {
    order.push(agent);
    stack.push(...(children.get(agent.id) ?? []));
  }
  const sums = new Map<string, Sum>();
  for (const agent of order.reverse()) {
    const live = isLive(agent);
    const sum: Sum = {
      below: 0,
      liveBelow: 0,
      cpu: live ? agent.usage.cpu_percent : 0,
      memory: live ? agent.usage.memory_bytes : 0,
      usd: agent.usage.micro_usd,
    };
    for (const child of children.get(agent.id) ?? []) {
      const part = sums.get(child.id);
      if (part === undefined) continue;
      sum.below += part.below + 1;
      sum.liveBelow += part.liveBelow + (isLive(child) ? 1 : 0);
      sum.cpu += part.cpu;
      sum.memory += part.memory;
      sum.usd += part.usd;
    }
    sums.set(agent.id, sum);
  }
  return sums;
}

function byStart(a: AgentView, b: AgentView): number {
  return a.started_at_ms - b.started_at_ms || (a.id < b.id ? -1 : 1);
}
