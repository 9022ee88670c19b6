/** All agents, as they are now. */
import { useMemo, useRef } from "preact/hooks";
import { type AgentPhase, type AgentView, WORDS } from "../api.ts";
import {
  budgetShares,
  type Order,
  type SortKey,
  select,
  sort,
  type Totals,
  totals,
  type Wanted,
} from "../lib/fleet.ts";
import { bytes, count, duration, many, percent, usd, whole, words } from "../lib/format.ts";
import type { Trace } from "../lib/live.ts";
import { agentLink, route, setQuery } from "../router.ts";
import { now, world } from "../store.ts";
import { Empty, Loading, Phase, Untrusted } from "../ui/bits.tsx";
import { BudgetBar, Sparkline } from "../ui/gauge.tsx";
import { useNarrow, useRowsInView } from "../ui/hooks.ts";
import { StartButton } from "./start.tsx";

/** They have to be the heights in the style sheet: rows out of view are not there to be measured. */
const ROW_HEIGHT = 48;
const NARROW_ROW_HEIGHT = 92;

const COLUMNS: ReadonlyArray<readonly [SortKey, string]> = [
  ["phase", "Status"],
  ["name", "Agent"],
  ["cpu", "CPU"],
  ["memory", "Memory"],
  ["processes", "Procs"],
  ["spent", "Spent"],
];

export function FleetPage() {
  const known = world();
  if (!known.hasFleet) return <Loading what="the fleet" />;
  const query = route.value.query;
  const wanted: Wanted = {
    search: query.get("q") ?? "",
    phase: (query.get("phase") as Wanted["phase"] | null) ?? "live",
    alerted: query.get("alerted") === "yes",
  };
  const order = readOrder(query);
  const shown = sort(select(known.agents.values(), wanted), order);
  const sum = totals(known.agents.values());
  return (
    <div class="page">
      <Summary sum={sum} />
      <Filters wanted={wanted} sum={sum} shown={shown.length} order={order} />
      {shown.length === 0 ? <NoneShown sum={sum} /> : <Rows agents={shown} order={order} traces={known.traces} />}
    </div>
  );
}

function readOrder(query: URLSearchParams): Order {
  const key = COLUMNS.find(([name]) => name === query.get("sort"))?.[0];
  if (key === undefined)
    return query.get("sort") === "started" || query.get("sort") === "alerts"
      ? { key: query.get("sort") as SortKey, down: true }
      : { key: "worst", down: false };
  return { key, down: query.get("down") === "yes" };
}

function Summary({ sum }: { sum: Totals }) {
  const cells: ReadonlyArray<readonly [string, string]> = [
    ["Live agents", whole(sum.live)],
    ["CPU", percent(sum.cpu_percent)],
    ["Memory", bytes(sum.memory_bytes)],
    ["Processes", whole(sum.processes)],
    ["Tokens", count(sum.tokens)],
    ["Spent", usd(sum.micro_usd)],
  ];
  return (
    <dl class="summary">
      {cells.map(([label, value]) => (
        <div key={label}>
          <dt>{label}</dt>
          <dd class="num">{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function Filters({ wanted, sum, shown, order }: { wanted: Wanted; sum: Totals; shown: number; order: Order }) {
  const phases = WORDS.AgentPhase.filter((phase) => sum.phases[phase] > 0 || phase === wanted.phase);
  const chip = (value: Wanted["phase"], label: string, number: number) => (
    <button
      key={value}
      type="button"
      class="chip"
      aria-pressed={wanted.phase === value ? "true" : "false"}
      onClick={() => setQuery({ phase: value === "live" ? undefined : value })}
    >
      {label} <span class="num">{whole(number)}</span>
    </button>
  );
  return (
    <div class="filters">
      <input
        type="search"
        data-search
        aria-label="Search agents by name, id, command or capability"
        placeholder="Search agents"
        value={wanted.search}
        onInput={(event) => setQuery({ q: event.currentTarget.value })}
      />
      <label class="select narrow-only">
        <span class="hidden">Sort by</span>
        <select value={order.key} onChange={(event) => setQuery({ sort: event.currentTarget.value, down: "yes" })}>
          <option value="worst">worst first</option>
          <option value="started">newest first</option>
          {COLUMNS.map(([key, label]) => (
            <option key={key} value={key}>
              by {label.toLowerCase()}
            </option>
          ))}
          <option value="alerts">by alerts</option>
        </select>
      </label>
      <div class="chips">
        {chip("live", "current", sum.agents - sum.phases.ended)}
        {phases.map((phase: AgentPhase) => chip(phase, words(phase), sum.phases[phase]))}
        {chip("all", "all", sum.agents)}
        <button
          type="button"
          class="chip"
          aria-pressed={wanted.alerted ? "true" : "false"}
          onClick={() => setQuery({ alerted: wanted.alerted ? undefined : "yes" })}
        >
          with alerts
        </button>
      </div>
      <button
        type="button"
        class="chip"
        aria-pressed={order.key === "started" ? "true" : "false"}
        onClick={() => setQuery({ sort: order.key === "started" ? undefined : "started", down: undefined })}
      >
        newest first
      </button>
      <StartButton />
      <span class="muted num filters-count" role="status">
        {many(shown, "agent")}
      </span>
    </div>
  );
}

function NoneShown({ sum }: { sum: Totals }) {
  if (sum.agents === 0) {
    return (
      <Empty title="Nothing under the glass yet">
        <p>Start an agent, and it appears here by itself:</p>
        <pre class="command">belljar sandbox -- python agent.py</pre>
      </Empty>
    );
  }
  return (
    <Empty title="No agent matches">
      <p>
        <button type="button" onClick={() => setQuery({ q: undefined, phase: "all", alerted: undefined })}>
          Show all {whole(sum.agents)}
        </button>
      </p>
    </Empty>
  );
}

function Rows({ agents, order, traces }: { agents: AgentView[]; order: Order; traces: ReadonlyMap<string, Trace> }) {
  const list = useRef<HTMLDivElement>(null);
  const narrow = useNarrow();
  const height = narrow ? NARROW_ROW_HEIGHT : ROW_HEIGHT;
  const { from, to } = useRowsInView(list, height, agents.length);
  return (
    <div class="table fleet" role="table" aria-label="Agents" aria-rowcount={agents.length + 1}>
      <div class="table-head" role="row">
        {COLUMNS.map(([key, label]) => (
          <SortHead key={key} name={key} label={label} order={order} />
        ))}
        <span role="columnheader" class="head">
          Budget
        </span>
        <SortHead name="started" label="Age" order={order} />
        <SortHead name="alerts" label="Alerts" order={order} />
      </div>
      <div ref={list} role="rowgroup" class="table-rows">
        <svg class="spacer" width="1" height={from * height} aria-hidden="true" />
        {agents.slice(from, to).map((agent, at) => (
          <Row key={agent.id} agent={agent} index={from + at} trace={traces.get(agent.id)} />
        ))}
        <svg class="spacer" width="1" height={(agents.length - to) * height} aria-hidden="true" />
      </div>
    </div>
  );
}

function SortHead({ name, label, order }: { name: SortKey; label: string; order: Order }) {
  const isIt = order.key === name;
  // Who started last has the smallest age.
  const down = name === "started" ? !order.down : order.down;
  const next = () =>
    setQuery({
      sort: name,
      down: isIt ? (order.down ? undefined : "yes") : name === "name" || name === "phase" ? undefined : "yes",
    });
  return (
    <span
      role="columnheader"
      class={`head head-${name}`}
      aria-sort={isIt ? (down ? "descending" : "ascending") : "none"}
    >
      <button type="button" onClick={next}>
        {label}
        <span aria-hidden="true">{isIt ? (down ? " ↓" : " ↑") : ""}</span>
      </button>
    </span>
  );
}

interface RowProps {
  readonly agent: AgentView;
  readonly index: number;
  readonly trace: Trace | undefined;
}

/** A row that is scrolled past is drawn again only when something about it has changed. Each sample is a new view of its agent. */
function Row({ agent, index, trace }: RowProps) {
  const time = now.value;
  return useMemo(() => <Cells agent={agent} index={index} trace={trace} time={time} />, [agent, index, trace, time]);
}

function Cells({ agent, index, trace, time }: RowProps & { time: number }) {
  const { usage, limits } = agent;
  const tightest = budgetShares(agent)[0];
  const ended = agent.end?.at_ms;
  return (
    <div class={`row row-${agent.phase}`} role="row" aria-rowindex={index + 2}>
      <span role="cell" class="cell-phase">
        <Phase phase={agent.phase} />
      </span>
      <span role="cell" class="cell-name">
        <a class="row-link" data-row href={agentLink(agent.id)}>
          <Untrusted text={agent.name} class="name" most={120} />
        </a>
        <Untrusted text={agent.command} class="command-line" most={160} />
      </span>
      <span role="cell" class="cell-cpu gauge">
        <Sparkline kind="cpu" values={trace?.cpu.values() ?? []} most={limits.cpu_percent ?? undefined} />
        <span class="num">{percent(usage.cpu_percent)}</span>
      </span>
      <span role="cell" class="cell-memory gauge">
        <Sparkline kind="memory" values={trace?.memory.values() ?? []} most={limits.memory_bytes ?? undefined} />
        <span class="num">{bytes(usage.memory_bytes)}</span>
      </span>
      <span role="cell" class="cell-processes num">
        {whole(usage.processes)}
      </span>
      <span role="cell" class="cell-spent num">
        {usd(usage.micro_usd)}
      </span>
      <span role="cell" class="cell-budget">
        {tightest === undefined ? <span class="muted">no limit</span> : <BudgetBar share={tightest} />}
      </span>
      <span role="cell" class="cell-started num">
        {duration((ended ?? time) - agent.started_at_ms)}
      </span>
      <span role="cell" class="cell-alerts num">
        {agent.open_alerts > 0 ? (
          <span class="badge" title={many(agent.open_alerts, "open alert")}>
            {agent.open_alerts}
          </span>
        ) : null}
      </span>
    </div>
  );
}
