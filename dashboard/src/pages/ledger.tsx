/** The record of every decision, and proof that it is whole. */
import { useEffect, useState } from "preact/hooks";
import type { LedgerEntry, LedgerReport, Problem } from "../api.ts";
import { problemOf } from "../client.ts";
import { visible } from "../lib/clean.ts";
import { many, moment, whole, words } from "../lib/format.ts";
import { type EntryLine, lineOf, NOISE } from "../lib/ledger.ts";
import { route, setQuery } from "../router.ts";
import { client, whyNot, world } from "../store.ts";
import { ActionButton, Ago, Copy, download, Empty, Failed, Field, Loading, Select, Untrusted } from "../ui/bits.tsx";
import { Dialog } from "../ui/dialog.tsx";
import { useAsked } from "../ui/hooks.ts";

const PAGE = 200;
/** Pages that are read in one go where few entries match. */
const MOST_PAGES = 10;

export function LedgerPage() {
  const entries = world().status?.ledger.entries;
  // Decisions come in bursts; the number of entries says when it is worth asking.
  const [report, again] = useAsked("ledger", () => client.ledger(), 10_000);
  if (report.is === "loading") return <Loading what="the ledger" />;
  if (report.is === "failed") return <Failed problem={report.problem} onRetry={again} />;
  return (
    <div class="page">
      <Report report={report.value} entries={Math.max(entries ?? 0, report.value.entries)} onVerified={again} />
      <Entries total={report.value.entries} />
    </div>
  );
}

function verdict(report: LedgerReport): readonly [string, string] {
  if (report.failed) return ["bad", "Can’t be written"];
  if (report.verified === "whole") return ["good", "Whole"];
  if (report.verified === "not_checked") return ["plain", "Not checked yet"];
  return ["bad", "Not whole"];
}

function Report({ report, entries, onVerified }: { report: LedgerReport; entries: number; onVerified: () => void }) {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const [tone, word] = verdict(report);
  const verify = async () => {
    setBusy(true);
    setProblem(undefined);
    try {
      await client.verifyLedger();
      onVerified();
    } catch (error) {
      setProblem(problemOf(error));
    }
    setBusy(false);
  };
  return (
    <section class="panel ledger-report">
      <div class="panel-head">
        <h1 class={`verdict verdict-${tone}`}>
          <span class="verdict-dot" aria-hidden="true" />
          {word}
        </h1>
        <span class="muted">
          {report.verified_at_ms ? (
            <>
              checked <Ago at={report.verified_at_ms} />
            </>
          ) : null}
        </span>
        <span class="grow" />
        <ActionButton
          label={busy ? "Verifying…" : "Verify now"}
          kind="primary"
          whyNot={whyNot("VerifyLedger")}
          onClick={verify}
        />
      </div>
      {report.failed ? (
        <p class="notice notice-bad">
          <Untrusted text={report.failed} />
        </p>
      ) : null}
      {tone === "bad" && !report.failed ? (
        <p class="notice notice-bad">
          <Untrusted text={report.verified} />
        </p>
      ) : null}
      {problem === undefined ? null : <Failed problem={problem} />}
      <dl class="facts">
        <Field label="Entries">
          <span class="num" data-testid="entries">
            {whole(entries)}
          </span>
        </Field>
        <Field label="Signing key">
          <Untrusted text={report.key} class="mono" />
        </Field>
      </dl>
      <details class="checkpoint">
        <summary>Signed checkpoint</summary>
        <pre class="code">{visible(report.checkpoint)}</pre>
        <Copy text={report.checkpoint} />{" "}
        <button type="button" class="small" onClick={() => download("belljar-checkpoint.txt", report.checkpoint)}>
          Download
        </button>
        <p class="muted small-text">Keep a copy elsewhere: whoever has it can show later that nothing was taken out.</p>
      </details>
    </section>
  );
}

function Entries({ total }: { total: number }) {
  const [asked, again] = useAsked("entries", () => client.entries({ limit: PAGE }));
  const [older, setOlder] = useState<readonly LedgerEntry[]>([]);
  const [proving, setProving] = useState<number>();
  const [problem, setProblem] = useState<Problem>();
  const [busy, setBusy] = useState(false);
  const { query } = route.value;
  const [kind, who, noise] = [query.get("kind") ?? "", query.get("agent") ?? "", query.get("noise") === "yes"];
  // What is open stays open while newer entries come.
  useEffect(() => {
    if (total > 0) again();
  }, [total, again]);
  if (asked.is === "loading" && older.length === 0) return <Loading what="entries" />;
  if (asked.is === "failed") return <Failed problem={asked.problem} onRetry={again} />;
  const newest = asked.is === "here" ? asked.value.entries : [];
  const known = new Map([...newest, ...older].map((entry) => [entry.index, entry]));
  const entries = [...known.values()].sort((a, b) => b.index - a.index);
  const last = entries.at(-1);
  const lines = entries.map((entry) => [entry, lineOf(entry)] as const);
  const isWanted = (line: EntryLine) =>
    (kind === "" ? noise || !NOISE.has(line.kind) : line.kind === kind) && (who === "" || isAbout(line, who));
  const wanted = lines.filter(([, line]) => isWanted(line));
  const kinds = [...new Set(lines.map(([, line]) => line.kind))].sort();

  const more = async () => {
    if (last === undefined || busy) return;
    setBusy(true);
    setProblem(undefined);
    try {
      const found: LedgerEntry[] = [];
      let before = last.index;
      for (let page = 0; page < MOST_PAGES && before > 0; page += 1) {
        const reply = await client.entries({ before, limit: PAGE });
        found.push(...reply.entries);
        before = reply.entries.at(-1)?.index ?? 0;
        if (found.filter((entry) => isWanted(lineOf(entry))).length >= 50) break;
      }
      setOlder([...older, ...found]);
    } catch (error) {
      setProblem(problemOf(error));
    }
    setBusy(false);
  };

  if (entries.length === 0)
    return (
      <Empty title="No entry yet">
        <p>The first decision writes the first entry.</p>
      </Empty>
    );
  return (
    <section>
      <div class="panel-head entries-head">
        <h2>Entries</h2>
        <span class="grow" />
        <DownloadAll />
      </div>
      <div class="filters">
        <input
          type="search"
          data-search
          aria-label="Of this agent alone: its name or id"
          placeholder="Agent"
          value={who}
          onInput={(event) => setQuery({ agent: event.currentTarget.value })}
        />
        <Select<string>
          label="Kind"
          value={kind}
          all="every kind"
          options={kinds}
          onChange={(next) => setQuery({ kind: next })}
        />
        <label class="check">
          <input
            type="checkbox"
            checked={noise}
            onChange={(event) => setQuery({ noise: event.currentTarget.checked ? "yes" : undefined })}
          />
          Usage reports too
        </label>
        <span class="muted num filters-count" role="status">
          {many(wanted.length, "entry", "entries")} of the last {whole(entries.length)}
        </span>
      </div>
      <ul class="entries">
        {wanted.map(([entry, line]) => (
          <Entry key={entry.index} entry={entry} line={line} onProve={() => setProving(entry.index)} />
        ))}
      </ul>
      {problem === undefined ? null : <Failed problem={problem} onRetry={more} />}
      {last !== undefined && last.index > 0 ? (
        <p class="more">
          <button type="button" disabled={busy} onClick={more}>
            {busy ? "Loading…" : "Load older entries"}
          </button>
        </p>
      ) : null}
      {proving === undefined ? null : <ProofDialog index={proving} onClose={() => setProving(undefined)} />}
    </section>
  );
}

/** Whether an entry is about an agent, by the beginning of its id or a part of its name, or speaks of it. */
function isAbout(line: EntryLine, who: string): boolean {
  const sought = who.toLowerCase();
  const name = line.who === undefined ? "" : (world().agents.get(line.who)?.name ?? "");
  return `${line.who ?? ""}\n${name}\n${line.what}`.toLowerCase().includes(sought);
}

function Entry({ entry, line, onProve }: { entry: LedgerEntry; line: EntryLine; onProve: () => void }) {
  const name = line.who === undefined ? undefined : (world().agents.get(line.who)?.name ?? line.who);
  return (
    <li class="entry">
      <details>
        <summary>
          <span class="num entry-index">{whole(entry.index)}</span>
          <span class="num entry-time">{line.at_ms === undefined ? "" : moment(line.at_ms)}</span>
          <strong class="entry-kind">
            <Untrusted text={words(line.kind)} most={40} />
          </strong>
          <Untrusted class="entry-who" text={name ?? ""} most={32} />
          <Untrusted class="entry-line" text={line.what} most={300} />
        </summary>
        <pre class="code">{visible(JSON.stringify(entry.entry, null, 2))}</pre>
        <button type="button" class="small" onClick={onProve}>
          Prove
        </button>
      </details>
    </li>
  );
}

function ProofDialog({ index, onClose }: { index: number; onClose: () => void }) {
  const [asked, again] = useAsked(`proof ${index}`, () => client.proof(index));
  const name = `belljar-entry-${index}.proof`;
  return (
    <Dialog title={`Proof of entry ${whole(index)}`} wide onClose={onClose}>
      {asked.is === "loading" ? <Loading what="the proof" /> : null}
      {asked.is === "failed" ? <Failed problem={asked.problem} onRetry={again} /> : null}
      {asked.is === "here" ? (
        <>
          <p>
            Anybody can check it without this supervisor: <code>belljar audit verify --proof {name}</code>
          </p>
          <pre class="code proof">{visible(asked.value.proof)}</pre>
        </>
      ) : null}
      <div class="dialog-actions">
        {asked.is === "here" ? (
          <>
            <Copy text={asked.value.proof} />
            <button type="button" onClick={() => download(name, asked.value.proof)}>
              Download
            </button>
          </>
        ) : null}
        <button type="button" class="primary" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

/** Every entry, one JSON document a line, oldest first. */
function DownloadAll() {
  const [read, setRead] = useState<number>();
  const [problem, setProblem] = useState<Problem>();
  const start = async () => {
    const all: LedgerEntry[] = [];
    setProblem(undefined);
    try {
      for (let before: number | undefined; before !== 0; ) {
        setRead(all.length);
        const { entries } = await client.entries({ limit: 500, ...(before === undefined ? {} : { before }) });
        if (entries.length === 0) break;
        all.push(...entries);
        before = entries.at(-1)?.index ?? 0;
      }
      const lines = all.reverse().map((entry) => JSON.stringify(entry));
      download("belljar-ledger.jsonl", `${lines.join("\n")}\n`, "application/jsonl");
    } catch (error) {
      setProblem(problemOf(error));
    }
    setRead(undefined);
  };
  return (
    <>
      {problem === undefined ? null : <span class="field-problem">{problem.message}</span>}
      <button type="button" class="small" disabled={read !== undefined} onClick={start}>
        {read === undefined ? "Download all" : `Reading ${whole(read)}…`}
      </button>
    </>
  );
}
