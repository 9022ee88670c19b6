/** Changes that agents propose to their own code. */
import type { ProposalList, ProposalRow } from "../api.ts";
import { WORDS } from "../api.ts";
import { line } from "../lib/clean.ts";
import { many, whole, words } from "../lib/format.ts";
import { bars, isOpen, ordered, riskTone, statusTone, type Tone } from "../lib/proposals.ts";
import { proposalLink, route, setQuery } from "../router.ts";
import { client } from "../store.ts";
import { Ago, Empty, Failed, Loading, Segments, Select, Untrusted } from "../ui/bits.tsx";
import { useAsked } from "../ui/hooks.ts";

const EVERY_MS = 5000;
type Risk = ProposalRow["risk"];

export function ProposalsPage() {
  const [asked, again] = useAsked("proposals", () => client.proposals(), EVERY_MS);
  if (asked.is === "loading") return <Loading what="proposals" />;
  if (asked.is === "failed") {
    return (
      <div class="page">
        <Failed problem={asked.problem} onRetry={again} />
      </div>
    );
  }
  return <Proposals list={asked.value} />;
}

function Proposals({ list }: { list: ProposalList }) {
  const { query } = route.value;
  const which = query.get("show") === "all" ? "all" : "open";
  const risk = (WORDS.ProposalRisk as readonly string[]).includes(query.get("risk") ?? "")
    ? (query.get("risk") as Risk)
    : "";
  const shown = ordered(list.proposals).filter(
    (row) => (which === "all" || isOpen(row)) && (risk === "" || row.risk === risk),
  );
  return (
    <div class="page">
      <div class="filters">
        <Segments
          label="Which"
          value={which}
          options={[
            ["open", "Open"],
            ["all", "All"],
          ]}
          onChange={(show) => setQuery({ show: show === "all" ? "all" : undefined })}
        />
        <Select
          label="Risk"
          value={risk}
          all="Any risk"
          options={WORDS.ProposalRisk as readonly Risk[]}
          onChange={(chosen) => setQuery({ risk: chosen })}
        />
        <span class="muted num filters-count" role="status">
          {many(shown.length, "proposal")}
        </span>
      </div>
      {shown.length === 0 ? <Nothing list={list} which={which} /> : null}
      <ul class="proposals">
        {shown.map((row) => (
          <Row key={row.id} row={row} />
        ))}
      </ul>
      {list.left_out > 0 && which === "all" ? (
        <p class="muted">
          {many(list.left_out, "older proposal")} can be had with <code>belljar evolve list</code>.
        </p>
      ) : null}
      {list.stats.proposals > 0 ? <Statistics list={list} /> : null}
    </div>
  );
}

function Nothing({ list, which }: { list: ProposalList; which: "open" | "all" }) {
  if (list.stats.proposals === 0) {
    return (
      <Empty title="Nobody has proposed anything">
        <p>
          An agent proposes a change to its own code with <code>belljar agent propose</code>, a person with{" "}
          <code>belljar evolve propose</code>.
        </p>
      </Empty>
    );
  }
  return (
    <Empty title={which === "open" ? "Nothing is open" : "No proposal is like that"}>
      <p>
        {which === "open" ? (
          <button type="button" onClick={() => setQuery({ show: "all" })}>
            Show all {whole(list.stats.proposals)}
          </button>
        ) : null}
      </p>
    </Empty>
  );
}

export function ToneTag({ tone, text }: { tone: Tone; text: string }) {
  return <span class={`tag tone-${tone}`}>{text}</span>;
}

function Row({ row }: { row: ProposalRow }) {
  return (
    <li>
      <a class="panel proposal-row" data-row href={proposalLink(row.id)}>
        <span class="proposal-title">
          <Untrusted text={row.title === "" ? "(no description)" : row.title} most={200} />
        </span>
        <span class="proposal-tags">
          <ToneTag tone={statusTone(row.status)} text={words(row.status)} />
          <ToneTag tone={riskTone(row.risk)} text={`${row.risk} risk`} />
          {row.rollout && row.status === "deployed" ? (
            <ToneTag tone="ice" text={`rollout: ${line(row.rollout, 20)}`} />
          ) : null}
        </span>
        <span class="proposal-facts muted">
          <span class="mono">{row.id.slice(0, 12)}</span>
          <Untrusted text={row.by} most={60} />
          <Untrusted text={row.project} most={80} />
          <Ago at={row.proposed_at_ms} />
        </span>
      </a>
    </li>
  );
}

function Statistics({ list }: { list: ProposalList }) {
  const { stats } = list;
  return (
    <section class="panel">
      <div class="panel-head">
        <h2>What became of {many(stats.proposals, "proposal")}</h2>
      </div>
      <div class="stats">
        <Bars title="Status" counts={stats.by_status} readable />
        <Bars title="Risk" counts={stats.by_risk} readable />
        <Bars title="Refused by stages for" counts={stats.refused_for} />
        <Bars title="Rejected by people for" counts={stats.rejected_for} />
        <Bars title="Proposed by" counts={stats.by_author} />
        <Bars title="What people said" counts={stats.statements} readable />
      </div>
    </section>
  );
}

function Bars({ title, counts, readable }: { title: string; counts: Record<string, number>; readable?: boolean }) {
  const rows = bars(counts).slice(0, 8);
  return (
    <div class="stat">
      <h3>{title}</h3>
      {rows.length === 0 ? <p class="muted">nothing so far</p> : null}
      <dl>
        {rows.map(({ name, value, share }) => (
          <div key={name} class="stat-row">
            <dt>
              <Untrusted text={readable ? words(name) : name} most={48} />
            </dt>
            <dd>
              <progress class="stat-bar" value={share} max={1} aria-hidden="true" />
              <span class="num">{whole(value)}</span>
            </dd>
          </div>
        ))}
      </dl>
    </div>
  );
}
