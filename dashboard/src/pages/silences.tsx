/** Of which alerts nobody is told. */
import { useState } from "preact/hooks";
import type { AlertView, SilenceView } from "../api.ts";
import { duration, words } from "../lib/format.ts";
import { client, now, whyNot } from "../store.ts";
import { ActionButton, Segments, Untrusted } from "../ui/bits.tsx";
import { ReasonDialog } from "../ui/dialog.tsx";
import { useAsked } from "../ui/hooks.ts";

/** Of whom nobody is told, and until when. */
export function Silences() {
  const [asked, again] = useAsked("silences", () => client.silences(), 10_000);
  const [ending, setEnding] = useState<SilenceView>();
  const silences = asked.is === "here" ? asked.value.silences.filter((one) => one.until_ms > now.value) : [];
  if (silences.length === 0) return null;
  return (
    <section class="panel">
      <h2>Silences</h2>
      <ul class="silences">
        {silences.map((one) => (
          <li key={one.id}>
            <span>
              <strong>{one.kind ? words(one.kind) : "Any alert"}</strong> about{" "}
              {one.agent ? <Untrusted text={one.agent} most={60} /> : "everybody"}, {duration(one.until_ms - now.value)}{" "}
              more
              <span class="muted">
                {" · "}
                <Untrusted text={one.by} most={40} />: <Untrusted text={one.reason} most={160} />
              </span>
            </span>
            <ActionButton small label="End…" whyNot={whyNot("EndSilence")} onClick={() => setEnding(one)} />
          </li>
        ))}
      </ul>
      {ending === undefined ? null : (
        <ReasonDialog
          title="End the silence"
          action="End"
          onClose={() => setEnding(undefined)}
          onConfirm={async (reason) => {
            await client.endSilence(ending.id, reason);
            again();
          }}
        >
          <p>Whoever is told of alerts is told of those that are still open.</p>
        </ReasonDialog>
      )}
    </section>
  );
}

const LENGTHS = { "1 hour": 3_600_000, "8 hours": 28_800_000, "1 day": 86_400_000, "7 days": 604_800_000 } as const;

export function SilenceDialog({ alert, onClose }: { alert: AlertView; onClose: () => void }) {
  const [length, setLength] = useState<keyof typeof LENGTHS>("1 hour");
  const name = alert.agent_name ?? alert.agent ?? undefined;
  return (
    <ReasonDialog
      title="Silence"
      action="Silence"
      onClose={onClose}
      onConfirm={(reason) =>
        client.silence(
          // A name may hold the letter that stands for any others: then the id is meant.
          {
            kind: alert.kind,
            for_ms: LENGTHS[length],
            ...(name ? { agent: name.includes("*") ? (alert.agent ?? name) : name } : {}),
          },
          reason,
        )
      }
    >
      <p>
        Nobody is told of “{words(alert.kind)}”
        {name ? (
          <>
            {" "}
            about <Untrusted text={name} most={60} />
          </>
        ) : null}{" "}
        until then. It is raised and listed all the same, and rules that freeze or end an agent do.
      </p>
      <Segments<keyof typeof LENGTHS>
        label="For how long"
        value={length}
        options={Object.keys(LENGTHS).map((one) => [one as keyof typeof LENGTHS, one] as const)}
        onChange={setLength}
      />
    </ReasonDialog>
  );
}
