/**
 * The one place that knows what is going on. Pages read signals; whatever changes goes through here.
 * Agents are known from the stream alone: the answer to a request may come after the stream told of something newer.
 */
import { computed, signal } from "@preact/signals";
import { type AgentView, type EventKind, ROLES } from "./api.ts";
import { Client, type Role, type Session } from "./client.ts";
import { Live } from "./lib/live.ts";
import { type Connection, Stream } from "./stream.ts";

export type Login =
  | { readonly is: "asking" }
  | { readonly is: "out"; readonly why?: string }
  | { readonly is: "unreachable" }
  | { readonly is: "in"; readonly session: Session };

export const login = signal<Login>({ is: "asking" });
export const connection = signal<Connection>({ is: "connecting" });
/** Raised once a frame at most, however many messages came. */
export const version = signal(0);
/** The time, each second, for ages and count-downs. */
export const now = signal(Date.now());

export const client = new Client(() => loggedOut("Your session ended. Log in again to go on."));

let live = new Live();
let stream: Stream | undefined;
let isRaised = false;
let lastMessage = Date.now();

/** Events after which the supervisor's own state is another. */
const ABOUT_STATUS: ReadonlySet<EventKind> = new Set(["kill_switch_engaged", "kill_switch_reset", "ledger", "daemon"]);
/** Silence after which a connection is looked into: one that a sleeping laptop left behind never says that it is dead. */
const SILENCE_MS = 30_000;
const watchers = new Set<(agent: AgentView) => void>();

/** What is known. Reading it makes a component follow it. */
export function world(): Live {
  version.value;
  return live;
}

/** Calls back with every view of an agent as it comes, until the answer is called. */
export function watchAgents(watcher: (agent: AgentView) => void): () => void {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
}

export const killSwitch = computed(() => world().status?.kill_switch.engaged ?? undefined);
export const openAlerts = computed(() => {
  let many = 0;
  for (const alert of world().alerts.values()) if (alert.state === "open" && !alert.silenced) many += 1;
  return many;
});

const RANK: Record<Role, number> = { viewer: 0, operator: 1, admin: 2 };

/** Why the person logged in may not ask for something; nothing where they may. */
export function whyNot(operation: keyof typeof ROLES): string | undefined {
  const session = login.value.is === "in" ? login.value.session : undefined;
  const needed = ROLES[operation];
  if (session !== undefined && RANK[session.role] >= RANK[needed]) return undefined;
  return `This needs ${article(needed)} token; yours is ${article(session?.role ?? "viewer")}.`;
}

function article(role: Role): string {
  return role === "viewer" ? "a viewer’s" : role === "operator" ? "an operator’s" : "an admin’s";
}

export async function begin(): Promise<void> {
  setInterval(() => {
    now.value = Date.now();
  }, 1000);
  addEventListener("online", () => stream?.retryNow());
  setInterval(() => void lookInto(), SILENCE_MS / 2);
  await askSession();
}

/** Finds out who is logged in, and begins to listen. */
export async function askSession(): Promise<void> {
  try {
    enter(await client.session());
  } catch (error) {
    const status = (error as { status?: number }).status;
    login.value = status === 401 || status === 403 ? { is: "out" } : { is: "unreachable" };
  }
}

export async function logIn(token: string): Promise<void> {
  enter(await client.logIn(token));
}

export async function logOut(): Promise<void> {
  await client.logOut().catch(() => undefined);
  loggedOut();
}

export function retryNow(): void {
  stream?.retryNow();
}

function enter(session: Session): void {
  login.value = { is: "in", session };
  stream?.stop();
  live = new Live();
  stream = new Stream({
    onOpen() {
      live.begin();
      void catchUp();
    },
    onMessage(message) {
      live.apply(message);
      lastMessage = Date.now();
      if (message.is === "event" && ABOUT_STATUS.has(message.data.kind)) void refreshStatus().catch(() => undefined);
      if (message.is === "agents") for (const agent of message.data) for (const watch of watchers) watch(agent);
      raise();
    },
    onConnection(next) {
      connection.value = next;
    },
    async askStanding() {
      try {
        await client.session();
        return "in";
      } catch (error) {
        if ((error as { status?: number }).status !== 401) return "unreachable";
        loggedOut("Your session ended. Log in again to go on.");
        return "out";
      }
    },
  });
}

async function lookInto(): Promise<void> {
  if (connection.value.is !== "live" || Date.now() - lastMessage < SILENCE_MS) return;
  try {
    await refreshStatus();
  } catch {
    stream?.suspect();
  }
}

/** What a stream does not tell at its beginning: alerts that are open, how the supervisor does, what happened last. */
async function catchUp(): Promise<void> {
  await Promise.allSettled([refreshStatus(), refreshAlerts(), refreshEvents()]);
}

export async function refreshStatus(): Promise<void> {
  live.apply({ is: "status", data: await client.status() });
  raise();
}

async function refreshAlerts(): Promise<void> {
  const { alerts } = await client.alerts({ limit: 1000 });
  const told = new Set(alerts.map((alert) => alert.id));
  // What is not among the unresolved any more was resolved while nobody listened.
  for (const alert of [...live.alerts.values()]) {
    if (alert.state !== "resolved" && !told.has(alert.id)) live.alerts.delete(alert.id);
  }
  for (const alert of alerts) live.apply({ is: "alert", data: alert });
  raise();
}

async function refreshEvents(): Promise<void> {
  const { events } = await client.events({ limit: 100 });
  for (const event of [...events].reverse()) live.apply({ is: "event", data: event });
  live.events.sort((a, b) => b.id - a.id);
  raise();
}

function loggedOut(why?: string): void {
  stream?.stop();
  stream = undefined;
  live = new Live();
  login.value = why === undefined ? { is: "out" } : { is: "out", why };
  raise();
}

function raise(): void {
  if (isRaised) return;
  isRaised = true;
  const show = () => {
    isRaised = false;
    version.value += 1;
  };
  // A page in the background gets no frames, but its title still counts alerts.
  if (document.hidden) setTimeout(show, 250);
  else requestAnimationFrame(show);
}
