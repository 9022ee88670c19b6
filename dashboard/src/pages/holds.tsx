/** Calls of MCP tools that wait for an operator. */
import { useState } from "preact/hooks";
import type { HoldView } from "../api.ts";
import { many } from "../lib/format.ts";
import { timeLeft, urgent, why } from "../lib/holds.ts";
import { client, whyNot } from "../store.ts";
import { ActionButton, Ago, Empty, Failed, Loading, Untrusted } from "../ui/bits.tsx";
import { ReasonDialog } from "../ui/dialog.tsx";
import { useAsked } from "../ui/hooks.ts";

/** A hold has seconds or minutes: it must show soon, and no stream tells of it. */
const EVERY_MS = 2000;

export function HoldsPage() {
  const [asked, again] = useAsked("holds", () => client.holds(), EVERY_MS);
  const now = Date.now();
  const shown = asked.is === "here" ? urgent(asked.value.holds, now) : [];
  return (
    <div class="page">
      <div class="filters">
        <span class="muted num filters-count" role="status">
          {many(shown.length, "held call")}
        </span>
      </div>
      {asked.is === "loading" ? <Loading what="held calls" /> : null}
      {asked.is === "failed" ? <Failed problem={asked.problem} onRetry={again} /> : null}
      {asked.is === "here" && shown.length === 0 ? (
        <Empty title="Nothing waits">
          <p>No call of a tool waits for an answer.</p>
        </Empty>
      ) : null}
      <ul class="alerts">
        {shown.map((hold) => (
          <Hold key={hold.id} hold={hold} now={now} onAnswered={again} />
        ))}
      </ul>
    </div>
  );
}

function Hold({ hold, now, onAnswered }: { hold: HoldView; now: number; onAnswered: () => void }) {
  const [asking, setAsking] = useState<"allow" | "refuse">();
  const answer = async (allow: boolean, reason: string) => {
    await client.answerHold(hold.id, allow, reason);
    onAnswered();
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
          {why(hold.code)} (<Untrusted text={hold.rule} most={160} />)
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
