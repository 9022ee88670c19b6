/** Who asked for whom. */
import { useRef, useState } from "preact/hooks";
import type { AgentView } from "../api.ts";
import { select } from "../lib/fleet.ts";
import { bytes, many, percent, usd, whole } from "../lib/format.ts";
import { MOST_RAILS, type TreeRow, treeRows } from "../lib/tree.ts";
import { agentLink, route, setQuery } from "../router.ts";
import { world } from "../store.ts";
import { Empty, Loading, Phase, Untrusted } from "../ui/bits.tsx";
import { useRowsInView } from "../ui/hooks.ts";

const ROW_HEIGHT = 36;

export function LineagePage() {
  const [closed, setClosed] = useState<ReadonlySet<string>>(new Set());
  const known = world();
  if (!known.hasFleet) return <Loading what="the lineage" />;
  const search = route.value.query.get("q") ?? "";
  const ended = route.value.query.get("ended") === "yes";
  const agents = wanted(known.agents, search, ended);
  const rows = treeRows(agents, closed);
  const toggle = (id: string) => {
    const next = new Set(closed);
    if (!next.delete(id)) next.add(id);
    setClosed(next);
  };
  const parents = rows.filter((row) => row.children > 0).map((row) => row.agent.id);
  return (
    <div class="page">
      <div class="filters">
        <input
          type="search"
          data-search
          aria-label="Search the lineage"
          placeholder="Search the lineage"
          value={search}
          onInput={(event) => setQuery({ q: event.currentTarget.value })}
        />
        <label class="check">
          <input
            type="checkbox"
            checked={ended}
            onChange={(event) => setQuery({ ended: event.currentTarget.checked ? "yes" : undefined })}
          />
          Ended agents too
        </label>
        <button type="button" class="small" onClick={() => setClosed(closed.size > 0 ? new Set() : new Set(parents))}>
          {closed.size > 0 ? "Open all" : "Close all"}
        </button>
        <span class="muted num filters-count" role="status">
          {many(agents.size, "agent")}
        </span>
      </div>
      {rows.length === 0 ? (
        <Empty title={known.agents.size === 0 ? "No lineage yet" : "No agent matches"}>
          <p>An agent that asks for a child, and gets it, begins one.</p>
        </Empty>
      ) : (
        <Tree rows={rows} onToggle={toggle} />
      )}
    </div>
  );
}

/** Those that match, and all above them, so that a match still shows where it comes from. */
function wanted(agents: ReadonlyMap<string, AgentView>, search: string, ended: boolean): Map<string, AgentView> {
  const found = new Map<string, AgentView>();
  for (const match of select(agents.values(), { search, phase: ended ? "all" : "live", alerted: false })) {
    for (let agent: AgentView | undefined = match; agent !== undefined && !found.has(agent.id); ) {
      found.set(agent.id, agent);
      agent = agent.parent ? agents.get(agent.parent) : undefined;
    }
  }
  return found;
}

function Tree({ rows, onToggle }: { rows: readonly TreeRow[]; onToggle: (id: string) => void }) {
  const list = useRef<HTMLDivElement>(null);
  const { from, to } = useRowsInView(list, ROW_HEIGHT, rows.length);
  return (
    <div class="table tree" role="treegrid" aria-label="Lineage" aria-rowcount={rows.length + 1}>
      <div class="table-head" role="row">
        <span role="columnheader" class="head">
          Agent
        </span>
        <span role="columnheader" class="head">
          Status
        </span>
        <span role="columnheader" class="head right">
          Below
        </span>
        <span role="columnheader" class="head right" title="It and everything below it">
          CPU Σ
        </span>
        <span role="columnheader" class="head right" title="It and everything below it">
          Memory Σ
        </span>
        <span role="columnheader" class="head right" title="It and everything below it">
          Spent Σ
        </span>
      </div>
      <div ref={list} role="rowgroup" class="table-rows">
        <svg class="spacer" width="1" height={from * ROW_HEIGHT} aria-hidden="true" />
        {rows.slice(from, to).map((row, at) => (
          <Row key={row.agent.id} row={row} index={from + at} onToggle={onToggle} />
        ))}
        <svg class="spacer" width="1" height={(rows.length - to) * ROW_HEIGHT} aria-hidden="true" />
      </div>
    </div>
  );
}

function Row({ row, index, onToggle }: { row: TreeRow; index: number; onToggle: (id: string) => void }) {
  const { agent } = row;
  const keys = (event: KeyboardEvent) => {
    if (row.children === 0) return;
    if ((event.key === "ArrowRight" && !row.isOpen) || (event.key === "ArrowLeft" && row.isOpen)) {
      event.preventDefault();
      onToggle(agent.id);
    }
  };
  return (
    <div
      class="row"
      role="row"
      aria-level={row.level + 1}
      aria-rowindex={index + 2}
      aria-expanded={row.children > 0 ? (row.isOpen ? "true" : "false") : undefined}
    >
      <span role="gridcell" class="cell-name tree-name">
        <Branch row={row} />
        {row.children > 0 ? (
          <button
            type="button"
            class="twist"
            tabIndex={-1}
            aria-label={row.isOpen ? "Close" : "Open"}
            onClick={() => onToggle(agent.id)}
          >
            {row.isOpen ? "▾" : "▸"}
          </button>
        ) : (
          <span class="twist" aria-hidden="true" />
        )}
        <a class="row-link" data-row href={agentLink(agent.id)} onKeyDown={keys}>
          <Untrusted text={agent.name} class="name" most={120} />
        </a>
        {row.level > MOST_RAILS ? <span class="tag num">depth {row.level}</span> : null}
      </span>
      <span role="gridcell" class="cell-phase">
        <Phase phase={agent.phase} />
      </span>
      <span role="gridcell" class="right num">
        {row.below === 0 ? "" : `${whole(row.liveBelow)} / ${whole(row.below)}`}
      </span>
      <span role="gridcell" class="right num">
        {percent(row.cpu_percent)}
      </span>
      <span role="gridcell" class="right num">
        {bytes(row.memory_bytes)}
      </span>
      <span role="gridcell" class="right num">
        {usd(row.micro_usd)}
      </span>
    </div>
  );
}

/** The lines that lead to a row. */
function Branch({ row }: { row: TreeRow }) {
  if (row.level === 0) return null;
  const width = Math.min(row.level, MOST_RAILS) * 18;
  const x = width - 9;
  const rails = row.rails.flatMap((goesOn, at) => (goesOn && at * 18 + 9 < x ? [at * 18 + 9] : []));
  return (
    <svg class="branch" width={width} height={ROW_HEIGHT} aria-hidden="true">
      {rails.map((rail) => (
        <path key={rail} d={`M${rail} 0V${ROW_HEIGHT}`} />
      ))}
      <path d={`M${x} 0V${row.isLast ? ROW_HEIGHT / 2 : ROW_HEIGHT}M${x} ${ROW_HEIGHT / 2}H${width}`} />
    </svg>
  );
}
