/** What needs attention. */
import { useState } from "preact/hooks";
import { type AlertKind, type AlertState, type AlertView, type Severity, WORDS } from "../api.ts";
import { count, many, whole, words } from "../lib/format.ts";
import { agentLink, route, setQuery } from "../router.ts";
import { client, version, whyNot, world } from "../store.ts";
import { ActionButton, Ago, Empty, Failed, Loading, Segments, Select, SeverityTag, Untrusted } from "../ui/bits.tsx";
import { ReasonDialog } from "../ui/dialog.tsx";
import { useAsked } from "../ui/hooks.ts";
import { SilenceDialog, Silences } from "./silences.tsx";

type Shown = AlertState | "unresolved";
/** So many alerts of one kind are a group. */
const GROUP = 4;
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
        <Bulk
          alerts={wanted.filter((alert) => alert.state !== "resolved")}
          kind={kind}
          exact={severity === "" && agent === "" && state === "unresolved"}
        />
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
      {grouped(wanted, kind === "" && state !== "resolved").map(([name, alerts]) =>
        name === undefined ? (
          <Rows key={alerts[0]?.id} alerts={alerts} />
        ) : (
          <details key={name} class="alert-group" open>
            <summary>
              <strong>{words(name)}</strong> <span class="muted num">{many(alerts.length, "alert")}</span>
            </summary>
            <Bulk alerts={alerts} kind={name} exact={severity === "" && agent === "" && state === "unresolved"} />
            <Rows alerts={alerts} />
          </details>
        ),
      )}
      <Silences />
    </div>
  );
}

function Rows({ alerts }: { alerts: readonly AlertView[] }) {
  return (
    <ul class="alerts">
      {alerts.map((alert) => (
        <Alert key={alert.id} alert={alert} />
      ))}
    </ul>
  );
}

/** Says of all that are shown that they are dealt with. `exact` where the supervisor can be told which by their kind. */
function Bulk({ alerts, kind, exact }: { alerts: readonly AlertView[]; kind: AlertKind | ""; exact: boolean }) {
  const [asking, setAsking] = useState(false);
  if (alerts.length < 2) return null;
  const confirm = async (reason: string) => {
    if (exact) await client.resolveAlerts(kind === "" ? { all: true } : { kind }, reason);
    else for (const alert of alerts) take(await client.resolve(alert.id, reason));
  };
  return (
    <>
      <ActionButton
        small
        label={`Resolve all ${whole(alerts.length)}…`}
        whyNot={whyNot("ResolveAlerts")}
        onClick={() => setAsking(true)}
      />
      {asking ? (
        <ReasonDialog
          title={`Resolve ${many(alerts.length, "alert")}`}
          action="Resolve all"
          onClose={() => setAsking(false)}
          onConfirm={confirm}
        >
          <p>Says that all of them are dealt with. Agents that a rule froze for them go on.</p>
        </ReasonDialog>
      ) : null}
    </>
  );
}

/** Many of one kind in a group of their own, where the worst of them would stand. */
function grouped(
  alerts: readonly AlertView[],
  wanted: boolean,
): ReadonlyArray<readonly [AlertKind | undefined, readonly AlertView[]]> {
  const kinds = new Map<AlertKind, AlertView[]>();
  for (const alert of alerts) kinds.set(alert.kind, [...(kinds.get(alert.kind) ?? []), alert]);
  const sections: Array<readonly [AlertKind | undefined, AlertView[]]> = [];
  for (const alert of alerts) {
    const all = kinds.get(alert.kind) ?? [];
    const last = sections.at(-1);
    if (wanted && all.length >= GROUP) {
      if (all[0] === alert) sections.push([alert.kind, all]);
    } else if (last !== undefined && last[0] === undefined) last[1].push(alert);
    else sections.push([undefined, [alert]]);
  }
  return sections;
}

/** What was asked for, as the stream told it since. */
function merged(asked: readonly AlertView[], live: ReadonlyMap<string, AlertView>): AlertView[] {
  const all = new Map(asked.map((alert) => [alert.id, alert]));
  for (const [id, alert] of live) all.set(id, alert);
  return [...all.values()];
}

function Alert({ alert }: { alert: AlertView }) {
  const [asking, setAsking] = useState<"acknowledge" | "resolve" | "silence">();
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
            {alert.reason ? (
              <>
                {": "}
                <Untrusted text={alert.reason} most={160} />
              </>
            ) : null}
          </span>
        )}
        {alert.silenced && alert.state !== "resolved" ? <span class="tag">silenced</span> : null}
        {alert.state === "resolved" || alert.silenced ? null : (
          <ActionButton small label="Silence…" whyNot={whyNot("CreateSilence")} onClick={() => setAsking("silence")} />
        )}
        {alert.state === "resolved" ? null : (
          <ActionButton small label="Resolve…" whyNot={whyNot("ResolveAlert")} onClick={() => setAsking("resolve")} />
        )}
      </div>
      {asking === "silence" ? <SilenceDialog alert={alert} onClose={close} /> : null}
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
