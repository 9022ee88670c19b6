/** Ends everything. */
import { useEffect, useState } from "preact/hooks";
import type { KillReport, Problem } from "../api.ts";
import { problemOf } from "../client.ts";
import { reasonProblem } from "../lib/clean.ts";
import { isLive } from "../lib/fleet.ts";
import { many, spell, whole } from "../lib/format.ts";
import { client, connection, killSwitch, refreshStatus, whyNot, world } from "../store.ts";
import { Failed, Field, Phase, Untrusted } from "../ui/bits.tsx";
import { Bar } from "../ui/gauge.tsx";
import { StopIcon } from "../ui/icons.tsx";

const WORD = "STOP";

interface Run {
  readonly from: number;
  readonly report?: KillReport;
  readonly problem?: Problem;
}

export function StopPage() {
  const [run, setRun] = useState<Run>();
  const engaged = killSwitch.value !== undefined;
  const live = [...world().agents.values()].filter(isLive);

  const engage = async (reason: string) => {
    const from = live.length;
    setRun({ from });
    try {
      const report = await client.engageKillSwitch(reason);
      setRun({ from, report });
    } catch (error) {
      setRun({ from, problem: problemOf(error) });
    }
    await refreshStatus().catch(() => undefined);
  };

  return (
    <div class="page stop-page">
      <h1>
        <StopIcon /> Emergency stop
      </h1>
      {run === undefined && !engaged ? <Ask live={live.length} onEngage={engage} /> : null}
      {run !== undefined || engaged ? <CountDown run={run} live={live.length} /> : null}
      {run?.problem === undefined ? null : <Failed problem={run.problem} onRetry={() => setRun(undefined)} />}
      {run?.report === undefined ? null : <Report report={run.report} />}
      {live.length > 0 && (run !== undefined || engaged) ? (
        <ul class="survivors" aria-label="Still alive">
          {live.slice(0, 40).map((agent) => (
            <li key={agent.id}>
              <Phase phase={agent.phase} /> <Untrusted text={agent.name} most={60} />
            </li>
          ))}
        </ul>
      ) : null}
    </div>
  );
}

function Ask({ live, onEngage }: { live: number; onEngage: (reason: string) => void }) {
  const [reason, setReason] = useState("");
  const [typed, setTyped] = useState("");
  const [tried, setTried] = useState(false);
  const refused = whyNot("EngageKillSwitch");
  const down = connection.value.is === "down";
  const wrong = reasonProblem(reason);
  const ready = typed === WORD && wrong === undefined && refused === undefined;

  const submit = (event: Event) => {
    event.preventDefault();
    setTried(true);
    if (ready) onEngage(reason.trim());
  };

  return (
    <form class="panel stop-form" onSubmit={submit} noValidate>
      <p>
        Kills every process of <strong class="num">{many(live, "live agent")}</strong> at once and refuses every grant
        until an admin resets it. Kill comes first, its record after. Nothing that is killed comes back.
      </p>
      {refused === undefined ? null : <p class="notice">{refused}</p>}
      {down ? (
        <p class="notice notice-warn">
          The supervisor can’t be reached from here. On its machine: <code>belljar supervisor kill-all</code>
        </p>
      ) : null}
      <label class="field">
        <span>Reason</span>
        <input
          type="text"
          name="reason"
          value={reason}
          maxLength={512}
          autocomplete="off"
          placeholder="It goes to the ledger"
          disabled={refused !== undefined}
          onInput={(event) => setReason(event.currentTarget.value)}
        />
      </label>
      <label class="field">
        <span>
          Type <kbd>{WORD}</kbd> to confirm
        </span>
        <input
          type="text"
          name="confirm"
          class="mono"
          value={typed}
          autocomplete="off"
          spellcheck={false}
          disabled={refused !== undefined}
          onInput={(event) => setTyped(event.currentTarget.value)}
        />
      </label>
      <p class="field-problem" role="status">
        {tried && !ready ? (wrong ?? `Type ${WORD}, in capitals.`) : ""}
      </p>
      <button type="submit" class="danger big" disabled={!ready}>
        Stop everything
      </button>
    </form>
  );
}

function CountDown({ run, live }: { run: Run | undefined; live: number }) {
  // The largest number seen is the whole bar, also for whoever opens the page while it happens.
  const [from, setFrom] = useState(run?.from ?? live);
  useEffect(() => setFrom((most) => Math.max(most, live, run?.from ?? 0)), [live, run]);
  const left = run?.report === undefined ? live : Math.max(live, run.report.survivors);
  const isOver = left === 0;
  return (
    <section class={isOver ? "count-down over" : "count-down"} aria-live="polite">
      <span class="count-number num" data-testid="survivors">
        {whole(left)}
      </span>
      <span class="count-word">{left === 1 ? "agent alive" : "agents alive"}</span>
      <Bar value={from === 0 ? 0 : left / from} label={`${left} of ${from} alive`} />
      <span class="muted">
        {isOver ? "Zero survivors. Nothing starts until an admin resets the kill switch." : `of ${whole(from)}`}
      </span>
    </section>
  );
}

function Report({ report }: { report: KillReport }) {
  return (
    <section class="panel" aria-label="Report">
      <h2>Report</h2>
      <dl class="facts">
        <Field label="Agents ended">{whole(report.killed)}</Field>
        <Field label="Boxes gone">{whole(report.boxes)}</Field>
        <Field label="Survivors">{whole(report.survivors)}</Field>
        <Field label="Took">{spell(report.elapsed_us)}</Field>
        <Field label="Ledger entry">
          {report.entry === null || report.entry === undefined ? "none" : whole(report.entry)}
        </Field>
      </dl>
      {report.survivors > 0 ? (
        <p class="notice notice-bad">
          {many(report.survivors, "box", "boxes")} still {report.survivors === 1 ? "has" : "have"} a live process. This
          needs a person on the machine.
        </p>
      ) : null}
      {report.not_recorded ? (
        <p class="notice notice-bad">
          The kill is not in the ledger: <Untrusted text={report.not_recorded} />
        </p>
      ) : null}
    </section>
  );
}
