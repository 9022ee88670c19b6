/** One agent. */
import type { AgentDetail, AgentView } from "../../api.ts";
import { line, visible } from "../../lib/clean.ts";
import { budgetShares } from "../../lib/fleet.ts";
import { bytes, duration, moment, percent, spell, usd, whole, words } from "../../lib/format.ts";
import { agentLink, pageLink, route, setQuery } from "../../router.ts";
import { client, now, world } from "../../store.ts";
import { Ago, Copy, Empty, Failed, Field, Loading, Phase, Segments, Untrusted } from "../../ui/bits.tsx";
import { BudgetBar } from "../../ui/gauge.tsx";
import { useAsked } from "../../ui/hooks.ts";
import { EventRows } from "../events.tsx";
import { Actions } from "./actions.tsx";
import { Denials } from "./denials.tsx";
import { Graphs } from "./graphs.tsx";
import { Output } from "./output.tsx";
import { Processes } from "./processes.tsx";

const TABS = [
  ["overview", "Overview"],
  ["denials", "Denials"],
  ["output", "Output"],
  ["events", "Events"],
  ["processes", "Processes"],
  ["policy", "Policy"],
] as const;
type Tab = (typeof TABS)[number][0];

export function AgentPage({ id }: { id: string }) {
  const [detail, again] = useAsked(id, () => client.agent(id), 5000);
  const agent = world().agents.get(id) ?? (detail.is === "here" ? detail.value.agent : undefined);
  if (agent === undefined) {
    if (detail.is === "loading") return <Loading what="the agent" />;
    if (detail.is === "failed" && !["not_found", "bad_worker_id", "bad_request"].includes(detail.problem.code))
      return <Failed problem={detail.problem} onRetry={again} />;
    return (
      <>
        <h1 class="hidden">An agent that is not known</h1>
        <Empty title="This agent is not known">
          <p>
            No agent has the id <span class="mono">{line(id, 64)}</span> now. It may have ended long ago, or been
            started anew: then it has the same name and another id.
          </p>
          <p>
            <a href={pageLink("fleet", { phase: "all" })}>All agents, by name</a> ·{" "}
            <a href={pageLink("events", { agent: id })}>What it did</a> · <a href={pageLink("ledger")}>The ledger</a>
          </p>
        </Empty>
      </>
    );
  }
  const tab = TABS.find(([name]) => name === route.value.query.get("tab"))?.[0] ?? "overview";
  return (
    <div class="page agent">
      <Head agent={agent} />
      <Actions agent={agent} />
      <Segments<Tab>
        label="Parts"
        value={tab}
        options={TABS.map(
          ([name, label]) => [name, withCount(name, label, detail.is === "here" ? detail.value : undefined)] as const,
        )}
        onChange={(next) => setQuery({ tab: next === "overview" ? undefined : next })}
      />
      {tab === "overview" ? (
        <>
          <Graphs agent={agent} />
          <Facts agent={agent} detail={detail.is === "here" ? detail.value : undefined} />
        </>
      ) : null}
      {tab === "denials" ? (
        <Detail of={detail} again={again} show={(known) => <Denials denials={known.denials} />} />
      ) : null}
      {tab === "output" ? <Output id={id} /> : null}
      {tab === "events" ? <AgentEvents id={id} /> : null}
      {tab === "processes" ? <Processes agent={agent} /> : null}
      {tab === "policy" ? <Detail of={detail} again={again} show={(known) => <Policy detail={known} />} /> : null}
    </div>
  );
}

function withCount(name: Tab, label: string, detail: AgentDetail | undefined): string {
  if (name === "denials" && detail !== undefined && detail.denials.length > 0)
    return `${label} ${detail.denials.length}`;
  return label;
}

function Detail(props: {
  of: ReturnType<typeof useAsked<AgentDetail>>[0];
  again: () => void;
  show: (detail: AgentDetail) => preact.ComponentChild;
}) {
  if (props.of.is === "loading") return <Loading what="the agent" />;
  if (props.of.is === "failed") return <Failed problem={props.of.problem} onRetry={props.again} />;
  return <>{props.show(props.of.value)}</>;
}

function Head({ agent }: { agent: AgentView }) {
  const parent = agent.parent ? world().agents.get(agent.parent) : undefined;
  return (
    <header class="agent-head">
      <nav class="crumbs" aria-label="Where this is">
        <a href={pageLink("fleet")}>Fleet</a>
        {agent.parent ? (
          <>
            <span aria-hidden="true">/</span>
            <a href={agentLink(agent.parent)}>
              <Untrusted text={parent?.name ?? agent.parent} most={40} />
            </a>
          </>
        ) : null}
        <span aria-hidden="true">/</span>
      </nav>
      <h1>
        <Untrusted text={agent.name} class="name" most={120} />
        <Phase phase={agent.phase} />
      </h1>
      <p class="agent-line">
        <span class="mono">{agent.id}</span>
        <Copy text={agent.id} label="Copy id" />
        <Untrusted text={agent.command} class="command-line" most={256} />
      </p>
      <EndNote agent={agent} />
      <NextRun agent={agent} />
    </header>
  );
}

/** The page of a run that is over leads to the one that goes on. */
function NextRun({ agent }: { agent: AgentView }) {
  if (agent.phase !== "ended") return null;
  let next: AgentView | undefined;
  for (const other of world().agents.values()) {
    const isLater = other.name === agent.name && other.id !== agent.id && other.started_at_ms > agent.started_at_ms;
    if (isLater && (next === undefined || other.started_at_ms > next.started_at_ms)) next = other;
  }
  if (next === undefined) return null;
  return (
    <p class="notice">
      It was started anew: <a href={agentLink(next.id)}>its present run</a>.
    </p>
  );
}

function EndNote({ agent }: { agent: AgentView }) {
  if (agent.phase === "waiting" && agent.restart_at_ms) {
    return (
      <p class="notice">It ended by itself and is started again in {duration(agent.restart_at_ms - now.value)}.</p>
    );
  }
  const { end } = agent;
  if (!end) return null;
  const how = [
    end.exit_code === null || end.exit_code === undefined ? "" : `exit code ${end.exit_code}`,
    end.signal ? `signal ${end.signal}` : "",
  ].filter(Boolean);
  return (
    <p class="notice">
      <strong>{words(end.cause)}</strong> <Ago at={end.at_ms} />
      {how.length > 0 ? `, ${how.join(", ")}` : ""}
      {end.detail ? (
        <>
          : <Untrusted text={end.detail} />
        </>
      ) : null}
    </p>
  );
}

function Facts({ agent, detail }: { agent: AgentView; detail: AgentDetail | undefined }) {
  const shares = budgetShares(agent);
  return (
    <div class="columns">
      <section class="panel">
        <h2>Budget</h2>
        {shares.length === 0 ? (
          <p class="muted">Nothing limits what it may spend.</p>
        ) : (
          shares.map((share) => <BudgetBar key={share.label} share={share} />)
        )}
        <dl class="facts">
          <Field label="Spent">{usd(agent.usage.micro_usd)}</Field>
          <Field label="Tokens">{whole(agent.usage.tokens)}</Field>
          <Field label="CPU time">{spell(agent.usage.cpu_ms * 1000)}</Field>
          <Field label="Sent, received">
            {bytes(agent.usage.sent_bytes)}, {bytes(agent.usage.received_bytes)}
          </Field>
          <Field label="Read, written">
            {bytes(agent.usage.read_bytes)}, {bytes(agent.usage.written_bytes)}
          </Field>
        </dl>
      </section>
      <section class="panel">
        <h2>Box</h2>
        <dl class="facts">
          <Field label="Capability">
            <Untrusted text={agent.capability} />
          </Field>
          <Field label="Wall">{detail === undefined ? "…" : <Untrusted text={detail.tier} />}</Field>
          {detail?.image && (
            <Field label="Image">
              <Untrusted text={`${detail.image.name} ${detail.image.digest}`} />
            </Field>
          )}
          <Field label="Limits held by">{detail === undefined ? "…" : <Untrusted text={detail.limits_by} />}</Field>
          <Field label="Memory limit">{agent.limits.memory_bytes ? bytes(agent.limits.memory_bytes) : "none"}</Field>
          <Field label="CPU limit">{agent.limits.cpu_percent ? percent(agent.limits.cpu_percent) : "none"}</Field>
          <Field label="Process limit">{agent.limits.processes ? whole(agent.limits.processes) : "none"}</Field>
          <Field label="Started">{moment(agent.started_at_ms)}</Field>
          <Field label="Restarts">{whole(agent.restarts)}</Field>
          <Field label="Keeper">{detail?.keeper_pid ? <span class="num">pid {detail.keeper_pid}</span> : "gone"}</Field>
          <Field label="Children">{detail === undefined ? "…" : <Children ids={detail.children} />}</Field>
        </dl>
        {detail?.degraded.map((what) => (
          <p key={what} class="notice notice-warn">
            Weaker here: <Untrusted text={what} />
          </p>
        ))}
      </section>
    </div>
  );
}

function Children({ ids }: { ids: readonly string[] }) {
  if (ids.length === 0) return <>none</>;
  return (
    <span class="child-list">
      {ids.slice(0, 12).map((child) => (
        <a key={child} href={agentLink(child)}>
          <Untrusted text={world().agents.get(child)?.name ?? child} most={24} />
        </a>
      ))}
      {ids.length > 12 ? <a href={pageLink("lineage")}>and {ids.length - 12} more</a> : null}
    </span>
  );
}

function Policy({ detail }: { detail: AgentDetail }) {
  return (
    <section class="panel">
      <div class="panel-head">
        <h2>Policy</h2>
        <p class="muted">As a file that `belljar run --config` takes.</p>
        <Copy text={detail.policy} />
      </div>
      <pre class="code" data-testid="policy">
        {visible(detail.policy)}
      </pre>
    </section>
  );
}

function AgentEvents({ id }: { id: string }) {
  const [asked, again] = useAsked(`events ${id}`, () => client.events({ agent: id, limit: 200 }));
  if (asked.is === "loading") return <Loading what="events" />;
  if (asked.is === "failed") return <Failed problem={asked.problem} onRetry={again} />;
  const told = new Set(asked.value.events.map((event) => event.id));
  const fresh = world().events.filter((event) => event.agent === id && !told.has(event.id));
  const events = [...fresh, ...asked.value.events];
  if (events.length === 0) return <Empty title="Nothing happened yet" />;
  return <EventRows events={events} isOneAgent />;
}
