/** One proposal: what changes, what was found out about it, what people said, and what to type. */
import type { CodeLine, ProposalDetail, ProposalFile, ProposalReason, ProposalStage, ReviewStatement } from "../api.ts";
import { line, visible } from "../lib/clean.ts";
import { many, spell, words } from "../lib/format.ts";
import { hasImpact, riskTone, statusTone, tally } from "../lib/proposals.ts";
import { pageLink } from "../router.ts";
import { client } from "../store.ts";
import { Ago, Copy, Empty, Failed, Field, Loading, Untrusted } from "../ui/bits.tsx";
import { useAsked } from "../ui/hooks.ts";
import { ToneTag } from "./proposals.tsx";
import { Rollout } from "./rollout.tsx";

const EVERY_MS = 5000;

export function ProposalPage({ id }: { id: string }) {
  const [asked, again] = useAsked(`proposal ${id}`, () => client.proposal(id), EVERY_MS);
  if (asked.is === "loading") return <Loading what="the proposal" />;
  if (asked.is === "failed") {
    return (
      <div class="page">
        {asked.problem.code === "not_found" ? (
          <Empty title="There is no such proposal">
            <p>
              <a href={pageLink("proposals")}>To the proposals</a>
            </p>
          </Empty>
        ) : (
          <Failed problem={asked.problem} onRetry={again} />
        )}
      </div>
    );
  }
  const detail = asked.value;
  return (
    <div class="page">
      <Head detail={detail} />
      {detail.not_ready ? (
        <p class="notice">
          <Untrusted text={detail.not_ready} most={600} />
        </p>
      ) : null}
      <div class="proposal-grid">
        <div class="proposal-side">
          <Decision detail={detail} />
          {detail.rollout ? <Rollout rollout={detail.rollout} /> : null}
          <Stages stages={detail.stages} />
          <Impact detail={detail} />
        </div>
        <Files files={detail.files} />
      </div>
      <Digests detail={detail} />
    </div>
  );
}

function Head({ detail }: { detail: ProposalDetail }) {
  const { proposal } = detail;
  const [first = "", ...rest] = detail.description.trim().split("\n");
  const more = rest.join("\n").trim();
  return (
    <header class="proposal-head">
      <p class="crumbs">
        <a href={pageLink("proposals")}>Proposals</a>
        <span aria-hidden="true">/</span>
        <span class="mono">{proposal.id.slice(0, 12)}</span>
      </p>
      <h1>
        <Untrusted text={first === "" ? "(no description)" : first} most={400} />
      </h1>
      <p class="proposal-tags">
        <ToneTag tone={statusTone(proposal.status)} text={words(proposal.status)} />
        <ToneTag tone={riskTone(proposal.risk)} text={`${proposal.risk} risk`} />
        <span class="muted">
          by <Untrusted text={proposal.by} most={80} />, <Ago at={proposal.proposed_at_ms} />, for{" "}
          <Untrusted text={proposal.project} most={160} />
        </span>
      </p>
      {more === "" ? null : <p class="agent-words">{visible(more)}</p>}
      <Reasons reasons={detail.reasons} />
    </header>
  );
}

function Reasons({ reasons }: { reasons: readonly ProposalReason[] }) {
  if (reasons.length === 0) return null;
  return (
    <ul class="reasons">
      {reasons.map((reason, at) => (
        <li key={at}>
          <Untrusted text={reason.code} class="mono reason-code" most={64} />{" "}
          {reason.at ? (
            <>
              <Untrusted text={reason.at} class="mono" most={160} />{" "}
            </>
          ) : null}
          <span class="agent-words">{visible(reason.message)}</span>
          {reason.hint ? <span class="muted agent-words"> {visible(reason.hint)}</span> : null}
        </li>
      ))}
    </ul>
  );
}

function Decision({ detail }: { detail: ProposalDetail }) {
  const { review } = detail;
  return (
    <section class="panel" aria-label="Decision">
      <div class="panel-head">
        <h2>Decision</h2>
      </div>
      <ul class="plain-list">
        {review.words.map((said) => (
          <li key={said}>
            <Untrusted text={said} most={600} />
          </li>
        ))}
      </ul>
      {detail.recommendation === "" ? null : (
        <p class="muted">
          Advice: <Untrusted text={detail.recommendation} most={400} />
        </p>
      )}
      {review.statements.length === 0 ? null : (
        <ul class="said">
          {review.statements.map((said, at) => (
            <Said key={at} said={said} />
          ))}
        </ul>
      )}
      {detail.commands.length === 0 ? null : (
        <>
          <p class="muted small-text">
            Deciding takes your own key, which this page never has. On the host, as the owner of the state directory:
          </p>
          <ul class="commands">
            {detail.commands.map(({ what, command }) => (
              <li key={command}>
                <span class="muted">{words(line(what, 60))}</span>
                <code>{visible(command)}</code>
                <Copy text={command} />
              </li>
            ))}
          </ul>
        </>
      )}
    </section>
  );
}

function Said({ said }: { said: ReviewStatement }) {
  const tone = said.verdict === "approve" ? "good" : said.verdict === "reject" ? "bad" : "plain";
  return (
    <li>
      <p class="proposal-tags">
        <ToneTag tone={tone} text={line(said.verdict, 20)} />
        <strong>
          <Untrusted text={said.reviewer} most={64} />
        </strong>
        <span class="muted">
          <Ago at={said.at_ms} />
        </span>
        {said.reasons.map((reason) => (
          <span key={reason} class="tag">
            {line(reason, 40)}
          </span>
        ))}
      </p>
      {said.text === "" ? null : <p class="agent-words">{visible(said.text)}</p>}
    </li>
  );
}

const VERDICTS = { pass: ["good", "pass"], fail: ["bad", "fail"], not_asked: ["plain", "not asked"] } as const;

function Stages({ stages }: { stages: readonly ProposalStage[] }) {
  const sums = tally(stages);
  return (
    <section class="panel" aria-label="Stages">
      <div class="panel-head">
        <h2>Stages</h2>
        <span class="muted num">
          {stages.length === 0
            ? "have not run"
            : `${sums.pass} passed, ${sums.fail} failed, ${sums.not_asked} not asked`}
        </span>
      </div>
      <ul class="stages">
        {stages.map((stage) => (
          <Stage key={stage.name} stage={stage} />
        ))}
      </ul>
    </section>
  );
}

function Stage({ stage }: { stage: ProposalStage }) {
  const [tone, word] = VERDICTS[stage.verdict];
  return (
    <li>
      <details open={stage.verdict === "fail"}>
        <summary>
          <span class="stage-name mono">{line(stage.name, 40)}</span>
          <ToneTag tone={tone} text={word} />
          <span class="muted num">
            {spell(stage.duration_ms * 1000)}
            {stage.cached ? ", cached" : ""}
          </span>
        </summary>
        <Reasons reasons={stage.reasons} />
        {stage.facts.length === 0 ? null : (
          <dl class="stage-facts">
            {stage.facts.map((fact) => (
              <div key={fact.name}>
                <dt>
                  <Untrusted text={fact.name} most={80} />
                </dt>
                <dd>
                  <Untrusted text={fact.value} most={200} class="mono" />
                </dd>
              </div>
            ))}
          </dl>
        )}
        <p class="muted small-text evidence">
          Evidence in the ledger; inputs <span class="mono">{line(stage.inputs_sha256, 64).slice(0, 16)}</span>
        </p>
      </details>
    </li>
  );
}

const IMPACT = [
  ["api_added", "New names that others can use"],
  ["api_removed", "Names that are gone"],
  ["api_changed", "Names declared otherwise"],
  ["callers", "Files that mention them"],
  ["raised", "What makes it riskier"],
] as const;

function Impact({ detail }: { detail: ProposalDetail }) {
  if (detail.stages.length === 0) return null;
  return (
    <section class="panel" aria-label="Impact">
      <div class="panel-head">
        <h2>Impact</h2>
      </div>
      {hasImpact(detail.impact) ? null : <p class="muted">Nothing that others use changes its name or its form.</p>}
      <dl class="impact">
        {IMPACT.filter(([key]) => detail.impact[key].length > 0).map(([key, label]) => (
          <div key={key}>
            <dt>{label}</dt>
            <dd>
              <ul>
                {detail.impact[key].slice(0, 100).map((name) => (
                  <li key={name}>
                    <Untrusted text={name} most={300} class="mono" />
                  </li>
                ))}
              </ul>
            </dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function Files({ files }: { files: readonly ProposalFile[] }) {
  return (
    <section class="proposal-files" aria-label="Changes">
      {files.map((file) => (
        <details key={file.path} class="panel diff" open={files.length <= 20}>
          <summary>
            <Untrusted text={file.path} class="mono" most={300} />
            <span class="muted">{line(file.kind, 20)}</span>
            <span class="num diff-sums">
              <span class="diff-more">+{file.added}</span> <span class="diff-less">−{file.removed}</span>
            </span>
          </summary>
          {file.lines.length === 0 ? <p class="muted diff-note">Not text, or its mode alone.</p> : <Diff file={file} />}
          {file.cut > 0 ? (
            <p class="muted diff-note">{many(file.cut, "more line")}: see it in a terminal before you decide.</p>
          ) : null}
        </details>
      ))}
    </section>
  );
}

function Diff({ file }: { file: ProposalFile }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls sideways must be reachable by keys.
    <section class="diff-scroll" tabIndex={0} aria-label={`Lines of ${line(file.path, 200)}`}>
      <pre class="diff-lines">
        {file.lines.map((one, at) => (
          <Line key={at} one={one} />
        ))}
      </pre>
    </section>
  );
}

const MARKS: Record<string, string> = { "+": "plus", "-": "minus", "@": "part" };

function Line({ one }: { one: CodeLine }) {
  const mark = MARKS[one.mark] ?? "same";
  return (
    <span class={`diff-line diff-${mark}`}>
      <span class="diff-mark">{mark === "part" ? "⋯" : mark === "minus" ? "−" : mark === "plus" ? "+" : " "}</span>
      <bdi>
        {one.parts.map((part, at) => (
          <span key={at} class={part.tint === "plain" ? undefined : `tint-${part.tint}`}>
            {visible(part.text)}
          </span>
        ))}
      </bdi>
      {"\n"}
    </span>
  );
}

function Digests({ detail }: { detail: ProposalDetail }) {
  if (!detail.digests) return null;
  return (
    <details class="panel">
      <summary>What an approval is bound to</summary>
      <dl class="facts digests">
        {Object.entries(detail.digests).map(([name, digest]) => (
          <Field key={name} label={words(name)}>
            <Untrusted text={String(digest)} class="mono" most={80} />
          </Field>
        ))}
      </dl>
    </details>
  );
}
