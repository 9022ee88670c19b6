/** What needs attention. */
import { useState } from "preact/hooks";
import { type AlertKind, type AlertState, type AlertView, type Severity, WORDS } from "../api.ts";
import { count, many, words } from "../lib/format.ts";
import { agentLink, route, setQuery } from "../router.ts";
import { client, version, whyNot, world } from "../store.ts";
import { ActionButton, Ago, Empty, Failed, Loading, Segments, Select, SeverityTag, Untrusted } from "../ui/bits.tsx";
import { ReasonDialog } from "../ui/dialog.tsx";
import { useAsked } from "../ui/hooks.ts";

type Shown = AlertState | "unresolved";
const RANK: Record<Severity, number> = { critical: 0, warning: 1, info: 2 };

export function AlertsPage() {
  const query = route.value.query;
  const state = (query.get("state") as Shown | null) ?? "unresolved";
  const kind = (query.get("kind") as AlertKind | null) ?? "";
  const severity = (query.get("severity") as Severity | null) ?? "";
  const agent = query.get("agent") ?? "";
  const [asked, again] = useAsked(`${state} ${agent}`, () =>
    client.alerts({ limit: 1000, ...(state === "unresolved" ? {} : { state }), ...(agent === "" ? {} : { agent }) }),
  );
  version.value;
  const shown = asked.is === "here" ? merged(asked.value.alerts, world().alerts) : [];
  const wanted = shown
    .filter((alert) => (state === "unresolved" ? alert.state !== "resolved" : alert.state === state))
    .filter((alert) => (kind === "" || alert.kind === kind) && (severity === "" || alert.severity === severity))
    .filter((alert) => agent === "" || alert.agent === agent)
    .sort((a, b) => RANK[a.severity] - RANK[b.severity] || b.last_at_ms - a.last_at_ms);

  return (
    <div class="page">
      <div class="filters">
        <Segments<Shown>
          label="State"
          value={state}
          options={[
            ["unresolved", "Unresolved"],
            ["open", "Open"],
            ["acknowledged", "Acknowledged"],
            ["resolved", "Resolved"],
          ]}
          onChange={(next) => setQuery({ state: next === "unresolved" ? undefined : next })}
        />
        <Select<Severity>
          label="Severity"
          value={severity}
          all="any severity"
          options={WORDS.Severity}
          onChange={(next) => setQuery({ severity: next })}
        />
        <Select<AlertKind>
          label="Kind"
          value={kind}
          all="every kind"
          options={WORDS.AlertKind}
          onChange={(next) => setQuery({ kind: next })}
        />
        {agent === "" ? null : (
          <button type="button" class="chip" aria-pressed="true" onClick={() => setQuery({ agent: undefined })}>
            one agent ✕
          </button>
        )}
        <span class="muted num filters-count" role="status">
          {many(wanted.length, "alert")}
        </span>
      </div>
      {asked.is === "loading" ? <Loading what="alerts" /> : null}
      {asked.is === "failed" ? <Failed problem={asked.problem} onRetry={again} /> : null}
      {asked.is === "here" && wanted.length === 0 ? (
        <Empty title={state === "resolved" ? "Nothing was resolved yet" : "All calm"}>
          <p>{state === "unresolved" || state === "open" ? "No alert needs you." : "No alert matches."}</p>
        </Empty>
      ) : null}
      <ul class="alerts">
        {wanted.map((alert) => (
          <Alert key={alert.id} alert={alert} />
        ))}
      </ul>
    </div>
  );
}

/** What was asked for, as the stream told it since. */
function merged(asked: readonly AlertView[], live: ReadonlyMap<string, AlertView>): AlertView[] {
  const all = new Map(asked.map((alert) => [alert.id, alert]));
  for (const [id, alert] of live) all.set(id, alert);
  return [...all.values()];
}

function Alert({ alert }: { alert: AlertView }) {
  const [asking, setAsking] = useState<"acknowledge" | "resolve">();
  const close = () => setAsking(undefined);
  const responses = alert.responses ?? [];
  return (
    <li class={`panel alert alert-${alert.severity} alert-${alert.state}`}>
      <div class="alert-main">
        <div class="alert-head">
          <SeverityTag severity={alert.severity} />
          <strong>{words(alert.kind)}</strong>
          {alert.agent ? (
            <a href={agentLink(alert.agent)}>
              <Untrusted text={alert.agent_name ?? alert.agent} most={60} />
            </a>
          ) : (
            <span class="muted">the supervisor</span>
          )}
          <span class="muted num">
            <Ago at={alert.last_at_ms} />
            {alert.count > 1 ? ` · ${count(alert.count)} ×` : ""}
          </span>
        </div>
        <p class="alert-text">
          <Untrusted text={alert.text} />
        </p>
        {alert.hint ? (
          <p class="muted">
            <Untrusted text={alert.hint} />
          </p>
        ) : null}
        {responses.length > 0 ? (
          <p class="responses">
            {responses.map((taken) => (
              <span key={`${taken.response} ${taken.at_ms}`} class={taken.failed ? "tag tag-bad" : "tag"}>
                {words(taken.response)} {taken.failed ? "failed" : "done"} by rule
                {taken.failed ? (
                  <>
                    : <Untrusted text={taken.failed} most={80} />
                  </>
                ) : null}
              </span>
            ))}
          </p>
        ) : null}
      </div>
      <div class="alert-actions">
        {alert.state === "open" ? (
          <ActionButton
            small
            label="Acknowledge…"
            whyNot={whyNot("AcknowledgeAlert")}
            onClick={() => setAsking("acknowledge")}
          />
        ) : (
          <span class="muted small-text">
            {alert.state}
            {alert.by ? (
              <>
                {" by "}
                <Untrusted text={alert.by} most={40} />
              </>
            ) : null}
          </span>
        )}
        {alert.state === "resolved" ? null : (
          <ActionButton small label="Resolve…" whyNot={whyNot("ResolveAlert")} onClick={() => setAsking("resolve")} />
        )}
      </div>
      {asking === "acknowledge" ? (
        <ReasonDialog
          title="Acknowledge the alert"
          action="Acknowledge"
          onClose={close}
          onConfirm={async (reason) => take(await client.acknowledge(alert.id, reason))}
        >
          <p>Says that you have seen it. It stays here until it is resolved.</p>
        </ReasonDialog>
      ) : null}
      {asking === "resolve" ? (
        <ReasonDialog
          title="Resolve the alert"
          action="Resolve"
          onClose={close}
          onConfirm={async (reason) => take(await client.resolve(alert.id, reason))}
        >
          <p>Says that it is dealt with. An agent that a rule froze for it goes on.</p>
        </ReasonDialog>
      ) : null}
    </li>
  );
}

/** An answer may come before the stream tells the same. */
function take(alert: AlertView): void {
  world().apply({ is: "alert", data: alert });
  version.value += 1;
}
