/** Where a candidate has got to. */
import type { RolloutView } from "../api.ts";
import { line } from "../lib/clean.ts";
import { many } from "../lib/format.ts";
import { share } from "../lib/proposals.ts";
import { Field, Untrusted } from "../ui/bits.tsx";

export function Rollout({ rollout }: { rollout: RolloutView }) {
  const on = rollout.instances.filter((instance) => instance.on_candidate).length;
  const isBack = rollout.stage === "rolled back" || rollout.stage === "going back";
  const [before, after] = rollout.error_rates;
  return (
    <section class="panel" aria-label="Rollout">
      <div class="panel-head">
        <h2>Rollout</h2>
        <span class={isBack ? "tag tone-bad" : rollout.stage === "done" ? "tag tone-good" : "tag tone-ice"}>
          {line(rollout.stage, 24)}
        </span>
      </div>
      <ol class="steps">
        {rollout.steps.map((step) => (
          <li
            key={step.name}
            class={`step step-${line(step.state, 10)}`}
            aria-current={step.state === "now" ? "step" : undefined}
          >
            <span class="step-dot" aria-hidden="true" />
            <span>{line(step.name, 24)}</span>
            <span class="hidden">{line(step.state, 10)}</span>
          </li>
        ))}
      </ol>
      {rollout.paused ? (
        <p class="notice">
          Held: <Untrusted text={rollout.paused} most={300} />
        </p>
      ) : null}
      {rollout.why_back ? (
        <p class="notice notice-bad">
          Taken back: <Untrusted text={rollout.why_back} most={600} />
        </p>
      ) : null}
      <dl class="facts">
        <Field label="Run the candidate">
          <span class="num">
            {on} of {rollout.instances.length}
          </span>
        </Field>
        <Field label="Looked at">
          <span class="num">{many(rollout.rounds, "time")}</span>
        </Field>
        {rollout.rounds > 0 ? (
          <Field label="Errors before, with it">
            <span class="num">
              {share(before ?? 0)}, {share(after ?? 0)}
            </span>
          </Field>
        ) : null}
        <Field label="Kept by">{rollout.is_supervised ? "this supervisor" : "somebody else"}</Field>
      </dl>
      <ul class="instances">
        {rollout.instances.map((instance) => (
          <li key={instance.name} class={instance.on_candidate ? "instance instance-new" : "instance"}>
            <Untrusted text={instance.name} most={64} />
            <span class="muted"> {instance.on_candidate ? "candidate" : "before"}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}
