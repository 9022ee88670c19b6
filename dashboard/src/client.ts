/** Requests to the supervisor: typed, with the session's cookie and its token against forged requests. */
import type {
  AgentDetail,
  AgentView,
  AlertKind,
  AlertList,
  AlertState,
  AlertsResolved,
  AlertView,
  EventKind,
  EventList,
  HoldList,
  HoldView,
  KillReport,
  KillSwitchView,
  LedgerEntries,
  LedgerReport,
  MetricsReply,
  OutputReply,
  OutputStream,
  Problem,
  ProcessList,
  ProofReply,
  ProposalDetail,
  ProposalList,
  Severity,
  SilenceList,
  SilenceView,
  StartRequest,
  StatusView,
} from "./api.ts";

export type Role = "viewer" | "operator" | "admin";

/** Who is logged in. */
export interface Session {
  readonly name: string;
  readonly role: Role;
  readonly csrf: string;
}

/** Something the supervisor refused, or a supervisor that could not be asked. */
export class Refused extends Error {
  override readonly name = "Refused";
  constructor(
    /** The HTTP status; 0 where no answer came. */
    readonly status: number,
    readonly problem: Problem,
  ) {
    super(problem.message);
  }
}

type Query = Record<string, string | number | boolean | undefined>;

/** Asks the supervisor. What a session ends is told to `onLoggedOut`, whichever request notices. */
export class Client {
  #csrf = "";

  constructor(readonly onLoggedOut: () => void) {}

  async session(): Promise<Session> {
    return this.#remember(await this.#send<Session>("GET", "/v1/session"));
  }

  async logIn(token: string): Promise<Session> {
    await this.#send("POST", "/v1/session", { token });
    // The session is read back rather than taken from the answer: this shows that the browser keeps the cookie.
    return this.session();
  }

  async logOut(): Promise<void> {
    await this.#post("/v1/session/end", {});
  }

  status = () => this.#get<StatusView>("/v1/status");
  agent = (id: string) => this.#get<AgentDetail>(`/v1/agents/${encodeURIComponent(id)}`);
  processes = (id: string) => this.#get<ProcessList>(`/v1/agents/${encodeURIComponent(id)}/processes`);
  output = (id: string, stream: OutputStream, from?: number) =>
    this.#get<OutputReply>(`/v1/agents/${encodeURIComponent(id)}/output`, { stream, from });
  metrics = (query: { agent?: string; since_ms?: number; points?: number }) =>
    this.#get<MetricsReply>("/v1/metrics", query);
  events = (query: {
    agent?: string | undefined;
    kind?: EventKind | undefined;
    severity?: Severity | undefined;
    search?: string | undefined;
    before?: number | undefined;
    limit?: number | undefined;
  }) => this.#get<EventList>("/v1/events", query);
  alerts = (query: { agent?: string; state?: AlertState; limit?: number }) => this.#get<AlertList>("/v1/alerts", query);
  proposals = () => this.#get<ProposalList>("/v1/proposals");
  proposal = (id: string) => this.#get<ProposalDetail>(`/v1/proposals/${encodeURIComponent(id)}`);
  holds = () => this.#get<HoldList>("/v1/holds");
  ledger = () => this.#get<LedgerReport>("/v1/ledger");
  entries = (query: { before?: number; limit?: number }) => this.#get<LedgerEntries>("/v1/ledger/entries", query);
  proof = (index: number) => this.#get<ProofReply>("/v1/ledger/proof", { index });

  verifyLedger = () => this.#post<LedgerReport>("/v1/ledger/verify", {});
  quarantine = (id: string, reason: string) =>
    this.#post(`/v1/workers/${encodeURIComponent(id)}/quarantine`, { reason });
  release = (id: string, reason: string) => this.#post(`/v1/workers/${encodeURIComponent(id)}/release`, { reason });
  stop = (id: string, reason: string) => this.#post<AgentView>(`/v1/agents/${encodeURIComponent(id)}/stop`, { reason });
  kill = (id: string, reason: string, subtree: boolean) =>
    this.#post<KillReport>(`/v1/workers/${encodeURIComponent(id)}/kill`, { reason, subtree });
  acknowledge = (id: string, reason: string) =>
    this.#post<AlertView>(`/v1/alerts/${encodeURIComponent(id)}/acknowledge`, { reason });
  resolve = (id: string, reason: string) =>
    this.#post<AlertView>(`/v1/alerts/${encodeURIComponent(id)}/resolve`, { reason });
  resolveAlerts = (query: { kind?: AlertKind; agent?: string; all?: boolean }, reason: string) =>
    this.#post<AlertsResolved>("/v1/alerts/resolve", { ...query, reason });
  silences = () => this.#get<SilenceList>("/v1/silences");
  silence = (query: { kind?: AlertKind; agent?: string; for_ms: number }, reason: string) =>
    this.#post<SilenceView>("/v1/silences", { ...query, reason });
  endSilence = (id: string, reason: string) =>
    this.#post<SilenceView>(`/v1/silences/${encodeURIComponent(id)}/end`, { reason });
  start = (request: StartRequest) => this.#post<AgentView>("/v1/agents", request);
  restart = (id: string, reason: string) =>
    this.#post<AgentView>(`/v1/agents/${encodeURIComponent(id)}/restart`, { reason });
  answerHold = (id: string, allow: boolean, reason: string) =>
    this.#post<HoldView>(`/v1/holds/${encodeURIComponent(id)}/answer`, { allow, reason });
  acknowledgeClock = (reason: string) => this.#post("/v1/clock/acknowledge", { reason });
  engageKillSwitch = (reason: string) => this.#post<KillReport>("/v1/kill-switch", { reason });
  resetKillSwitch = (reason: string) => this.#post<KillSwitchView>("/v1/kill-switch/reset", { reason });

  #get<Reply>(path: string, query: Query = {}): Promise<Reply> {
    const asked = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
    const text = new URLSearchParams(asked.map(([name, value]) => [name, String(value)])).toString();
    return this.#send<Reply>("GET", text === "" ? path : `${path}?${text}`);
  }

  #post<Reply>(path: string, body: unknown): Promise<Reply> {
    return this.#send<Reply>("POST", path, body);
  }

  #remember(session: Session): Session {
    this.#csrf = session.csrf;
    return session;
  }

  async #send<Reply>(method: "GET" | "POST", path: string, body?: unknown): Promise<Reply> {
    const headers: Record<string, string> = { Accept: "application/json" };
    if (method === "POST") {
      headers["Content-Type"] = "application/json";
      if (this.#csrf !== "") headers["X-Belljar-Csrf"] = this.#csrf;
    }
    let response: Response;
    try {
      response = await fetch(path, {
        method,
        headers,
        credentials: "same-origin",
        cache: "no-store",
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      });
    } catch {
      throw new Refused(0, {
        code: "unreachable",
        message: "The supervisor can't be reached.",
        hint: "Is it running? This page tries again by itself.",
      });
    }
    if (response.ok) return readReply<Reply>(response);
    if (response.status === 401 && path !== "/v1/session") this.onLoggedOut();
    throw new Refused(response.status, await readProblem(response));
  }
}

async function readReply<Reply>(response: Response): Promise<Reply> {
  const text = await response.text();
  return (text === "" ? undefined : JSON.parse(text)) as Reply;
}

async function readProblem(response: Response): Promise<Problem> {
  try {
    const problem = (await response.json()) as Partial<Problem>;
    if (typeof problem.code === "string" && typeof problem.message === "string") return problem as Problem;
  } catch {
    // Not from the supervisor itself, then: a proxy's page, or nothing.
  }
  return { code: "unexpected", message: `The supervisor answered with status ${response.status}.` };
}

/** What went wrong, as a problem, whatever was thrown. */
export function problemOf(error: unknown): Problem {
  if (error instanceof Refused) return error.problem;
  return { code: "unexpected", message: error instanceof Error ? error.message : String(error) };
}
