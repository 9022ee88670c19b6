/** What a person can do to an agent. */
import { useState } from "preact/hooks";
import type { AgentView, KillReport } from "../../api.ts";
import { hasBox, isLive } from "../../lib/fleet.ts";
import { many, spell } from "../../lib/format.ts";
import { agentLink, go } from "../../router.ts";
import { client, whyNot } from "../../store.ts";
import { ActionButton, Untrusted } from "../../ui/bits.tsx";
import { ReasonDialog } from "../../ui/dialog.tsx";

type Action = "quarantine" | "release" | "restart" | "stop" | "kill";

/** A replica is started by whoever asked for it. */
function notAgain(agent: AgentView): string | undefined {
  return agent.parent ? "It is a replica: its parent asks for another." : undefined;
}

export function Actions({ agent }: { agent: AgentView }) {
  const [asking, setAsking] = useState<Action>();
  const [report, setReport] = useState<KillReport>();
  const [subtree, setSubtree] = useState(true);
  const frozen = agent.phase === "quarantined" || agent.phase === "freezing";
  const gone = isLive(agent) ? undefined : "It is not running any more.";
  const boxless = hasBox(agent) ? undefined : "It has no running box now.";
  const close = () => setAsking(undefined);
  const name = <Untrusted text={agent.name} most={60} />;

  return (
    <div class="actions">
      {frozen ? (
        <ActionButton
          label="Release…"
          kind="primary"
          whyNot={whyNot("Release") ?? gone}
          onClick={() => setAsking("release")}
        />
      ) : (
        <ActionButton
          label="Quarantine…"
          whyNot={whyNot("Quarantine") ?? boxless}
          onClick={() => setAsking("quarantine")}
        />
      )}
      <ActionButton
        label="Restart…"
        whyNot={whyNot("RestartAgent") ?? notAgain(agent)}
        onClick={() => setAsking("restart")}
      />
      <ActionButton label="Stop…" whyNot={whyNot("StopAgent") ?? gone} onClick={() => setAsking("stop")} />
      <ActionButton label="Kill…" kind="danger" whyNot={whyNot("Kill") ?? gone} onClick={() => setAsking("kill")} />
      {whyNot("Kill") === undefined ? null : <span class="muted small-text">{whyNot("Kill")}</span>}
      {report === undefined ? null : (
        <span class="report" role="status">
          {many(report.killed, "agent")} killed in {spell(report.elapsed_us)}, {many(report.survivors, "survivor")}
        </span>
      )}

      {asking === "quarantine" ? (
        <ReasonDialog
          title="Quarantine"
          action="Quarantine"
          onClose={close}
          onConfirm={(reason) => client.quarantine(agent.id, reason)}
        >
          <p>
            Freezes every process of {name}. It gets nothing granted, and evidence is kept, until somebody releases it.
          </p>
        </ReasonDialog>
      ) : null}
      {asking === "release" ? (
        <ReasonDialog
          title="Release"
          action="Release"
          onClose={close}
          onConfirm={(reason) => client.release(agent.id, reason)}
        >
          <p>{name} goes on where it was frozen.</p>
        </ReasonDialog>
      ) : null}
      {asking === "restart" ? (
        <ReasonDialog
          title="Restart"
          action="Restart"
          onClose={close}
          onConfirm={async (reason) => {
            const next = await client.restart(agent.id, reason);
            go(agentLink(next.id));
          }}
        >
          <p>Asks {name} to end, and starts the same command under the same capability. It gets a new id.</p>
        </ReasonDialog>
      ) : null}
      {asking === "stop" ? (
        <ReasonDialog title="Stop" action="Stop" onClose={close} onConfirm={(reason) => client.stop(agent.id, reason)}>
          <p>Asks {name} to end, and ends it when it has not after the grace. It is not started again.</p>
        </ReasonDialog>
      ) : null}
      {asking === "kill" ? (
        <ReasonDialog
          title="Kill"
          action="Kill"
          danger
          onClose={close}
          onConfirm={async (reason) => setReport(await client.kill(agent.id, reason, subtree))}
        >
          <p>Ends every process of {name} at once.</p>
          <label class="check">
            <input type="checkbox" checked={subtree} onChange={(event) => setSubtree(event.currentTarget.checked)} />
            Also everything it started
          </label>
        </ReasonDialog>
      ) : null}
    </div>
  );
}
