/** Calls of MCP tools that wait for an operator. */
import { useState } from "preact/hooks";
import type { HoldView } from "../api.ts";
import { many } from "../lib/format.ts";
import { timeLeft, urgent, why } from "../lib/holds.ts";
import { client, now, whyNot, world } from "../store.ts";
import { ActionButton, Ago, Empty, Loading, Untrusted } from "../ui/bits.tsx";
import { ReasonDialog } from "../ui/dialog.tsx";

export function HoldsPage() {
  const { holds } = world();
  const shown = urgent(holds ?? [], now.value);
  return (
    <div class="page">
      <div class="filters">
        <span class="muted num filters-count" role="status">
          {many(shown.length, "held call")}
        </span>
      </div>
      {holds === undefined ? <Loading what="held calls" /> : null}
      {holds !== undefined && shown.length === 0 ? (
        <Empty title="Nothing waits">
          <p>No call of a tool waits for an answer.</p>
        </Empty>
      ) : null}
      <ul class="alerts">
        {shown.map((hold) => (
          <Hold key={hold.id} hold={hold} now={now.value} />
        ))}
      </ul>
    </div>
  );
}

function Hold({ hold, now }: { hold: HoldView; now: number }) {
  const [asking, setAsking] = useState<"allow" | "refuse">();
  const agent = world().agents.get(hold.run);
  const answer = async (allow: boolean, reason: string) => {
    // The stream tells when it no longer waits.
    await client.answerHold(hold.id, allow, reason);
  };
  return (
    <li class="panel alert alert-warning alert-open">
      <div class="alert-main">
        <div class="alert-head">
          <strong>
            <Untrusted text={`${hold.server}:${hold.tool}`} most={160} />
          </strong>
          <span class="muted num">
            <Ago at={hold.opened_at_ms} /> · {timeLeft(hold, now)}
          </span>
        </div>
        <p class="alert-text">
          <Untrusted text={hold.arguments} />
        </p>
        <p class="muted">
          <Untrusted text={agent?.name ?? hold.run} most={80} />: {why(hold.code)} (
          <Untrusted text={hold.rule} most={160} />)
        </p>
      </div>
      <div class="alert-actions">
        <ActionButton small label="Allow…" whyNot={whyNot("AnswerHold")} onClick={() => setAsking("allow")} />
        <ActionButton small label="Refuse…" whyNot={whyNot("AnswerHold")} onClick={() => setAsking("refuse")} />
      </div>
      {asking === undefined ? null : (
        <ReasonDialog
          title={asking === "allow" ? "Allow the call" : "Refuse the call"}
          action={asking === "allow" ? "Allow" : "Refuse"}
          onClose={() => setAsking(undefined)}
          onConfirm={(reason) => answer(asking === "allow", reason)}
        >
          <p>
            {asking === "allow"
              ? "This one call is made, with the arguments shown."
              : "The agent is told that the call was refused, and why."}
          </p>
        </ReasonDialog>
      )}
    </li>
  );
}
