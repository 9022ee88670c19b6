/** What an agent used, over time: history from the supervisor, and what comes live after it. */
import { useEffect, useState } from "preact/hooks";
import type { AgentView, Sample } from "../../api.ts";
import { bytes, clock, count, moment, percent, rate, usd } from "../../lib/format.ts";
import { sampleBetween } from "../../lib/live.ts";
import { route, setQuery } from "../../router.ts";
import { client, now, watchAgents } from "../../store.ts";
import { Failed, Loading, Segments } from "../../ui/bits.tsx";
import { Chart, pointed } from "../../ui/chart.tsx";
import { useAsked } from "../../ui/hooks.ts";

const RANGES = { "5m": 300_000, "1h": 3_600_000, "24h": 86_400_000, "7d": 604_800_000, "30d": 2_592_000_000 } as const;
type Range = keyof typeof RANGES;
const POINTS = 600;

export function Graphs({ agent }: { agent: AgentView }) {
  const named = route.value.query.get("range");
  const range: Range = named !== null && named in RANGES ? (named as Range) : "5m";
  const length = RANGES[range];
  const isShort = range === "5m";
  const [asked, again] = useAsked(
    `${agent.id} ${range}`,
    () => client.metrics({ agent: agent.id, since_ms: Date.now() - length, points: POINTS }),
    // Live samples go on where the history ends; a long range is asked for again as it grows by a point.
    isShort ? undefined : Math.max(10_000, length / POINTS),
  );
  const fresh = useFresh(agent.id);
  return (
    <section class="panel">
      <div class="panel-head">
        <h2>Usage</h2>
        {pointed.value === undefined ? null : (
          <span class="muted num" data-testid="pointed">
            {length > RANGES["24h"] ? moment(pointed.value * 1000) : clock(pointed.value * 1000)}
          </span>
        )}
        <span class="grow" />
        <Segments<Range>
          label="Time range"
          value={range}
          options={Object.keys(RANGES).map((name) => [name as Range, name] as const)}
          onChange={(next) => setQuery({ range: next === "5m" ? undefined : next })}
        />
      </div>
      {asked.is === "loading" ? <Loading what="graphs" /> : null}
      {asked.is === "failed" ? <Failed problem={asked.problem} onRetry={again} /> : null}
      {asked.is === "here" ? (
        <Drawn agent={agent} length={length} samples={joined(asked.value.samples, isShort ? fresh : [])} />
      ) : null}
    </section>
  );
}

/** Samples from the live stream, since the page was opened. */
function useFresh(id: string): Sample[] {
  const [fresh, setFresh] = useState<Sample[]>([]);
  useEffect(() => {
    let before: { agent: AgentView; at: number } | undefined;
    return watchAgents((agent) => {
      if (agent.id !== id) return;
      const at = Date.now();
      const sample = before === undefined ? undefined : sampleBetween(before.agent, before.at, agent, at);
      before = { agent, at };
      if (sample !== undefined) setFresh((known) => [...known.slice(-RANGES["5m"] / 1000), sample]);
    });
  }, [id]);
  return fresh;
}

function joined(history: readonly Sample[], fresh: readonly Sample[]): Sample[] {
  const last = history.at(-1)?.at_ms ?? 0;
  return [...history, ...fresh.filter((sample) => sample.at_ms > last)];
}

function Drawn({ agent, samples, length }: { agent: AgentView; samples: readonly Sample[]; length: number }) {
  const { limits } = agent;
  const times = samples.map((sample) => sample.at_ms / 1000);
  const to = (agent.end?.at_ms ?? now.value) / 1000;
  const field = { times, from: to - length / 1000, to };
  const of = (pick: (sample: Sample) => number) => samples.map(pick);
  if (samples.length === 0) return <p class="muted">No sample in this time.</p>;
  return (
    <div class="charts" data-testid="charts">
      <Chart
        {...field}
        title="CPU"
        format={percent}
        limit={limits.cpu_percent ?? undefined}
        lines={[{ label: "CPU", colour: "series-1", values: of((s) => s.cpu_percent) }]}
      />
      <Chart
        {...field}
        title="Memory"
        format={bytes}
        inBytes
        limit={limits.memory_bytes ?? undefined}
        lines={[{ label: "Memory", colour: "series-2", values: of((s) => s.memory_bytes) }]}
      />
      <Chart
        {...field}
        title="Processes"
        format={count}
        inWholes
        limit={limits.processes ?? undefined}
        lines={[{ label: "Processes", colour: "series-3", values: of((s) => s.processes) }]}
      />
      <Chart
        {...field}
        title="Network"
        format={rate}
        inBytes
        lines={[
          { label: "in", colour: "series-1", values: of((s) => s.receive_rate) },
          { label: "out", colour: "series-4", values: of((s) => s.send_rate) },
        ]}
      />
      <Chart
        {...field}
        title="Tokens"
        format={count}
        inWholes
        lines={[{ label: "Tokens", colour: "series-3", values: of((s) => s.tokens) }]}
      />
      <Chart
        {...field}
        title="Cost"
        format={usd}
        inWholes
        least={200}
        lines={[{ label: "Cost", colour: "series-4", values: of((s) => s.micro_usd) }]}
      />
    </div>
  );
}
