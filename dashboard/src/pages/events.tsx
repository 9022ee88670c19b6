/** What happened. */
import { useEffect, useState } from "preact/hooks";
import { type EventKind, type EventView, type Problem, type Severity, WORDS } from "../api.ts";
import { problemOf } from "../client.ts";
import { clock, day, many, words } from "../lib/format.ts";
import { agentLink, route, setQuery } from "../router.ts";
import { client, world } from "../store.ts";
import { Empty, Failed, Loading, Select, Untrusted } from "../ui/bits.tsx";
import { useAsked } from "../ui/hooks.ts";

const PAGE = 100;
const RANK: Record<Severity, number> = { info: 0, warning: 1, critical: 2 };

export function EventsPage() {
  const query = route.value.query;
  const search = query.get("q") ?? "";
  const kind = (query.get("kind") as EventKind | null) ?? "";
  const severity = (query.get("severity") as Severity | null) ?? "";
  const agent = query.get("agent") ?? "";
  const settled = useSettled(search.trim().slice(0, 120), 250);
  const filter = {
    search: settled || undefined,
    kind: kind || undefined,
    severity: severity || undefined,
    agent: agent || undefined,
  };
  const key = JSON.stringify(filter);
  const [asked, again] = useAsked(key, () => client.events({ ...filter, limit: PAGE }));
  const [older, loadOlder] = useOlder(key, filter);

  const page = asked.is === "here" ? asked.value.events : [];
  const told = new Set(page.map((event) => event.id));
  const oldest = page.at(-1)?.id ?? 0;
  // The stream is younger than the answer; what it told before that is in the answer.
  const fresh = world().events.filter((event) => event.id > oldest && !told.has(event.id) && matches(event, filter));
  const events = [...fresh, ...page, ...older.events];
  return (
    <div class="page">
      <div class="filters">
        <input
          type="search"
          data-search
          aria-label="Search events"
          placeholder="Search events"
          value={search}
          maxLength={120}
          onInput={(event) => setQuery({ q: event.currentTarget.value })}
        />
        <Select<EventKind>
          label="Kind"
          value={kind}
          all="every kind"
          options={WORDS.EventKind}
          onChange={(next) => setQuery({ kind: next })}
        />
        <Select<Severity>
          label="At least"
          value={severity}
          all="any severity"
          options={WORDS.Severity}
          onChange={(next) => setQuery({ severity: next })}
        />
        {agent === "" ? null : (
          <button type="button" class="chip" aria-pressed="true" onClick={() => setQuery({ agent: undefined })}>
            <Untrusted text={world().agents.get(agent)?.name ?? agent} most={40} /> ✕
          </button>
        )}
        <span class="muted num filters-count" role="status">
          {many(events.length, "event")}
        </span>
      </div>
      {asked.is === "loading" ? <Loading what="events" /> : null}
      {asked.is === "failed" ? <Failed problem={asked.problem} onRetry={again} /> : null}
      {asked.is === "here" && events.length === 0 ? <Empty title="Nothing happened like this" /> : null}
      {events.length > 0 ? <EventRows events={events} /> : null}
      {older.problem === undefined ? null : <Failed problem={older.problem} onRetry={() => loadOlder(events)} />}
      {asked.is === "here" && page.length === PAGE && !older.isEnd ? (
        <p class="more">
          <button type="button" onClick={() => loadOlder(events)}>
            Load older events
          </button>
        </p>
      ) : null}
    </div>
  );
}

interface Filter {
  readonly search: string | undefined;
  readonly kind: EventKind | undefined;
  readonly severity: Severity | undefined;
  readonly agent: string | undefined;
}

function matches(event: EventView, filter: Filter): boolean {
  if (filter.kind !== undefined && event.kind !== filter.kind) return false;
  if (filter.agent !== undefined && event.agent !== filter.agent) return false;
  if (filter.severity !== undefined && RANK[event.severity] < RANK[filter.severity]) return false;
  return filter.search === undefined || event.text.toLowerCase().includes(filter.search.toLowerCase());
}

interface Older {
  readonly events: readonly EventView[];
  readonly isEnd: boolean;
  readonly problem?: Problem;
}
const NONE: Older = { events: [], isEnd: false };

function useOlder(key: string, filter: Filter): [Older, (shown: readonly EventView[]) => void] {
  const [older, setOlder] = useState<Older>(NONE);
  // Another question has other answers.
  useEffect(() => setOlder(NONE), [key]);
  const load = async (shown: readonly EventView[]) => {
    try {
      const { events } = await client.events({ ...filter, before: shown.at(-1)?.id, limit: PAGE });
      setOlder((known) => ({ events: [...known.events, ...events], isEnd: events.length < PAGE }));
    } catch (error) {
      setOlder((known) => ({ ...known, problem: problemOf(error) }));
    }
  };
  return [older, load];
}

/** A value once it has not changed for a moment: not every letter of a search is a question. */
function useSettled(value: string, ms: number): string {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return settled;
}

export function EventRows({ events, isOneAgent = false }: { events: readonly EventView[]; isOneAgent?: boolean }) {
  let last = "";
  return (
    <ol class="timeline" reversed>
      {events.map((event) => {
        const date = day(event.at_ms);
        const isNewDay = date !== last;
        last = date;
        return (
          <li key={event.id} class={`event event-${event.severity}`}>
            {isNewDay ? <h2 class="event-day num">{date}</h2> : null}
            <div class="event-row">
              <time class="num muted" dateTime={new Date(event.at_ms).toISOString()}>
                {clock(event.at_ms)}
              </time>
              <span class="event-dot" aria-hidden="true" />
              <span class="event-kind">
                {words(event.kind)}
                {event.severity === "info" ? null : <span class="hidden">, {event.severity}</span>}
              </span>
              <span class="event-text">
                {event.agent && !isOneAgent ? (
                  <a class="event-agent" href={agentLink(event.agent)}>
                    <Untrusted text={world().agents.get(event.agent)?.name ?? event.agent} most={32} />
                  </a>
                ) : null}
                <Untrusted text={event.text} />
                {event.code ? (
                  <>
                    {" "}
                    <Untrusted text={event.code} class="mono muted" most={64} />
                  </>
                ) : null}
                {event.hint ? (
                  <span class="event-hint muted">
                    <Untrusted text={event.hint} />
                  </span>
                ) : null}
              </span>
            </div>
          </li>
        );
      })}
    </ol>
  );
}
