/** What the made-up supervisor answers, by the operator's table of routes. */
import { type AlertKind, type AlertState, type EventKind, type Problem, ROLES, type Severity } from "../src/api.ts";
import type { Role } from "../src/client.ts";
import { history, POLICY, processes } from "./fleet.ts";
import { proposalList } from "./proposals.ts";
import type { DevSupervisor } from "./supervisor.ts";

export interface Answer {
  readonly status: number;
  readonly body: unknown;
}

interface Asked {
  readonly supervisor: DevSupervisor;
  readonly by: string;
  readonly id: string;
  readonly query: URLSearchParams;
  readonly body: Record<string, unknown>;
}

const RANK: Record<Role, number> = { viewer: 0, operator: 1, admin: 2 };
const SEVERITY: Record<Severity, number> = { info: 0, warning: 1, critical: 2 };

export function refusal(status: number, code: string, message: string): Answer {
  const problem: Problem = { code, message };
  return { status, body: problem };
}

const ok = (body: unknown): Answer => ({ status: 200, body });
const missing = () => refusal(404, "not_found", "There is no such agent.");

const ROUTES: ReadonlyArray<readonly [keyof typeof ROLES, string, RegExp, (asked: Asked) => Answer | Promise<Answer>]> =
  [
    ["ReadStatus", "GET", /^\/v1\/status$/, ({ supervisor }) => ok(supervisor.status())],
    [
      "ListAgents",
      "GET",
      /^\/v1\/agents$/,
      ({ supervisor }) => ok({ agents: supervisor.views(), max_agents: 2000, at_ms: Date.now() }),
    ],
    ["StartAgent", "POST", /^\/v1\/agents$/, startAgent],
    ["ReadAgent", "GET", /^\/v1\/agents\/([\w-]+)$/, readAgent],
    ["ListProcesses", "GET", /^\/v1\/agents\/([\w-]+)\/processes$/, listProcesses],
    ["ReadOutput", "GET", /^\/v1\/agents\/([\w-]+)\/output$/, readOutput],
    [
      "StopAgent",
      "POST",
      /^\/v1\/agents\/([\w-]+)\/stop$/,
      withReason((asked, reason) => onAgent(asked, (agent) => asked.supervisor.endAgent(agent, "stopped", reason))),
    ],
    [
      "Quarantine",
      "POST",
      /^\/v1\/workers\/([\w-]+)\/quarantine$/,
      withReason((asked, reason) => onAgent(asked, (agent) => asked.supervisor.change(agent, "quarantined", reason))),
    ],
    [
      "Release",
      "POST",
      /^\/v1\/workers\/([\w-]+)\/release$/,
      withReason((asked, reason) => onAgent(asked, (agent) => asked.supervisor.change(agent, "running", reason))),
    ],
    ["Kill", "POST", /^\/v1\/workers\/([\w-]+)\/kill$/, withReason(kill)],
    [
      "EngageKillSwitch",
      "POST",
      /^\/v1\/kill-switch$/,
      withReason(async ({ supervisor }, reason) => ok(await supervisor.engage(reason))),
    ],
    [
      "ResetKillSwitch",
      "POST",
      /^\/v1\/kill-switch\/reset$/,
      withReason(({ supervisor }, reason) => {
        supervisor.reset(reason);
        return ok({});
      }),
    ],
    ["ReadMetrics", "GET", /^\/v1\/metrics$/, readMetrics],
    ["ListEvents", "GET", /^\/v1\/events$/, listEvents],
    ["ListAlerts", "GET", /^\/v1\/alerts$/, listAlerts],
    [
      "AcknowledgeAlert",
      "POST",
      /^\/v1\/alerts\/([\w-]+)\/acknowledge$/,
      withReason((asked) => onAlert(asked, "acknowledged")),
    ],
    ["ResolveAlert", "POST", /^\/v1\/alerts\/([\w-]+)\/resolve$/, withReason((asked) => onAlert(asked, "resolved"))],
    [
      "ResolveAlerts",
      "POST",
      /^\/v1\/alerts\/resolve$/,
      withReason(({ supervisor, by, body }, reason) => {
        const all = [...supervisor.alerts.values()].filter((alert) => alert.state !== "resolved");
        const wanted = all.filter((alert) => body.all === true || alert.kind === body.kind);
        for (const alert of wanted) supervisor.changeAlert(alert, "resolved", by, reason);
        return ok({ resolved: wanted.map((alert) => alert.id) });
      }),
    ],
    ["ListSilences", "GET", /^\/v1\/silences$/, ({ supervisor }) => ok({ silences: supervisor.silences })],
    [
      "CreateSilence",
      "POST",
      /^\/v1\/silences$/,
      withReason(({ supervisor, by, body }, reason) => {
        const { agent, kind } = body as { agent?: string; kind?: AlertKind };
        const until_ms = Date.now() + Number(body.for_ms);
        return {
          status: 201,
          body: supervisor.silence({ reason, by, until_ms, ...(agent ? { agent } : {}), ...(kind ? { kind } : {}) }),
        };
      }),
    ],
    [
      "EndSilence",
      "POST",
      /^\/v1\/silences\/([\w-]+)\/end$/,
      withReason(({ supervisor, id }) => {
        const ended = supervisor.endSilence(id);
        return ended === undefined ? refusal(404, "not_found", "No silence with that number holds.") : ok(ended);
      }),
    ],
    ["ListHolds", "GET", /^\/v1\/holds$/, ({ supervisor }) => ok({ holds: [...supervisor.holds.values()] })],
    ["AnswerHold", "POST", /^\/v1\/holds\/([\w-]+)\/answer$/, withReason(answerHold)],
    ["ListProposals", "GET", /^\/v1\/proposals$/, ({ supervisor }) => ok(proposalList(supervisor.proposals))],
    [
      "ReadProposal",
      "GET",
      /^\/v1\/proposals\/([\w-]+)$/,
      ({ supervisor, id }) => {
        const found = supervisor.proposals.find((one) => one.proposal.id === id);
        return found === undefined ? refusal(404, "not_found", "there is no such proposal") : ok(found);
      },
    ],
    [
      "RestartAgent",
      "POST",
      /^\/v1\/agents\/([\w-]+)\/restart$/,
      withReason((asked, reason) => onAgent(asked, (agent) => asked.supervisor.change(agent, "running", reason))),
    ],
    ["ReadLedger", "GET", /^\/v1\/ledger$/, ({ supervisor }) => ok(supervisor.ledger())],
    ["ListEntries", "GET", /^\/v1\/ledger\/entries$/, listEntries],
    [
      "ProveEntry",
      "GET",
      /^\/v1\/ledger\/proof$/,
      ({ supervisor, query }) =>
        ok({ index: number(query, "index", 0), proof: supervisor.proof(number(query, "index", 0)) }),
    ],
    [
      "VerifyLedger",
      "POST",
      /^\/v1\/ledger\/verify$/,
      ({ supervisor }) => {
        supervisor.verified = { word: "whole", at: Date.now() };
        return ok(supervisor.ledger());
      },
    ],
  ];

export async function answer(
  supervisor: DevSupervisor,
  asker: { name: string; role: Role },
  method: string,
  url: URL,
  body: unknown,
): Promise<Answer> {
  for (const [name, wanted, path, act] of ROUTES) {
    const match = method === wanted ? path.exec(url.pathname) : null;
    if (match === null) continue;
    const needed = ROLES[name];
    if (RANK[asker.role] < RANK[needed]) return refusal(403, "forbidden", `This needs the role ${needed}.`);
    return act({
      supervisor,
      by: asker.name,
      id: match[1] ?? "",
      query: url.searchParams,
      body: (body ?? {}) as Record<string, unknown>,
    });
  }
  return refusal(404, "not_found", "There is nothing at this path.");
}

function withReason(
  act: (asked: Asked, reason: string) => Answer | Promise<Answer>,
): (asked: Asked) => Answer | Promise<Answer> {
  return (asked) => {
    const reason = asked.body.reason;
    if (typeof reason !== "string" || reason === "") return refusal(400, "bad_request", "reason: it is empty");
    return act(asked, reason);
  };
}

function onAgent(asked: Asked, act: (agent: NonNullable<ReturnType<DevSupervisor["agents"]["get"]>>) => void): Answer {
  const agent = asked.supervisor.agents.get(asked.id);
  if (agent === undefined) return missing();
  act(agent);
  return ok(agent.view);
}

function onAlert({ supervisor, id, by, body }: Asked, state: "acknowledged" | "resolved"): Answer {
  const alert = supervisor.alerts.get(id);
  return alert === undefined
    ? refusal(404, "not_found", "There is no such alert.")
    : ok(supervisor.changeAlert(alert, state, by, typeof body.reason === "string" ? body.reason : undefined));
}

function answerHold({ supervisor, id }: Asked): Answer {
  const hold = supervisor.answerHold(id);
  return hold === undefined ? refusal(404, "not_found", "No call waits under this id.") : ok(hold);
}

function startAgent({ supervisor, body }: Asked): Answer {
  if (supervisor.isEngaged) return refusal(403, "kill_switch_engaged", "The kill switch is engaged.");
  const command = Array.isArray(body.command) ? body.command.map(String) : [];
  if (typeof body.name !== "string" || command.length === 0)
    return refusal(400, "bad_request", "name and command are needed");
  return { status: 201, body: supervisor.startAgent(body.name, command) };
}

function readAgent({ supervisor, id }: Asked): Answer {
  const agent = supervisor.agents.get(id);
  if (agent === undefined) return missing();
  const children = supervisor
    .views()
    .filter((view) => view.parent === id)
    .map((view) => view.id);
  const policy = supervisor.settings.hostile ? `${POLICY}# ${agent.view.name}\n` : POLICY;
  return ok({
    agent: agent.view,
    keeper_pid: 4711,
    children,
    workdir: "/srv/agent",
    tier: "native",
    limits_by: "cgroup v2",
    degraded: [],
    policy,
    denials: agent.denials,
  });
}

function listProcesses({ supervisor, id }: Asked): Answer {
  const agent = supervisor.agents.get(id);
  return agent === undefined ? missing() : ok({ processes: processes(agent, supervisor.random) });
}

function readOutput({ supervisor, id, query }: Asked): Answer {
  const agent = supervisor.agents.get(id);
  if (agent === undefined) return missing();
  const all = query.get("stream") === "stderr" ? "" : agent.output;
  const from = query.has("from") ? number(query, "from", 0) : Math.max(0, all.length - 256 * 1024);
  return ok({ text: all.slice(from), from, next: all.length, is_end: agent.view.phase === "ended", dropped: 0 });
}

function kill({ supervisor, id, body }: Asked, reason: string): Answer {
  const agent = supervisor.agents.get(id);
  return agent === undefined ? missing() : ok(supervisor.kill(agent, reason, body.subtree === true));
}

function readMetrics({ supervisor, query }: Asked): Answer {
  const agent = supervisor.agents.get(query.get("agent") ?? "");
  const until = number(query, "until_ms", Date.now());
  return ok(
    history(
      agent?.view,
      number(query, "since_ms", until - 600_000),
      until,
      number(query, "points", 600),
      supervisor.random,
    ),
  );
}

function listEvents({ supervisor, query }: Asked): Answer {
  const [agent, kind, severity] = [
    query.get("agent"),
    query.get("kind") as EventKind | null,
    query.get("severity") as Severity | null,
  ];
  const search = query.get("search")?.toLowerCase();
  const before = number(query, "before", Number.POSITIVE_INFINITY);
  const events = supervisor.events.filter(
    (event) =>
      event.id < before &&
      (agent === null || event.agent === agent) &&
      (kind === null || event.kind === kind) &&
      (severity === null || SEVERITY[event.severity] >= SEVERITY[severity]) &&
      (search === undefined || event.text.toLowerCase().includes(search)),
  );
  return ok({ events: events.slice(0, number(query, "limit", 100)) });
}

function listAlerts({ supervisor, query }: Asked): Answer {
  const [state, agent] = [query.get("state") as AlertState | null, query.get("agent")];
  const alerts = [...supervisor.alerts.values()].filter(
    (alert) =>
      (state === null ? alert.state !== "resolved" : alert.state === state) &&
      (agent === null || alert.agent === agent),
  );
  return ok({ alerts: alerts.reverse().slice(0, number(query, "limit", 200)) });
}

function listEntries({ supervisor, query }: Asked): Answer {
  const before = number(query, "before", supervisor.entries.length);
  const from = Math.max(0, before - number(query, "limit", 50));
  return ok({ entries: supervisor.entries.slice(from, before).reverse() });
}

function number(query: URLSearchParams, name: string, otherwise: number): number {
  const text = query.get(name);
  return text === null ? otherwise : Number(text);
}
