/** Connections that end, people without permission, and fleets without agents. */
import assert from "node:assert/strict";
import { exec } from "node:child_process";
import { test } from "node:test";
import { promisify } from "node:util";
import { TOKENS } from "../../dev/server.ts";
import { logIn, madeUp, open, startAgent, target } from "./harness.ts";

const REFUSED = [
  /ERR_CONNECTION_REFUSED|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_NETWORK|ERR_FAILED|status of 401/,
];

test("a page says that the supervisor is gone, and goes on when it is back", async (t) => {
  const restart = process.env.BELLJAR_RESTART;
  if (process.env.BELLJAR_URL !== undefined && restart === undefined)
    return t.skip("BELLJAR_RESTART has to hold a command");
  const at = await target({ agents: 3 });
  const page = await open(t, { expected: REFUSED });
  await logIn(page, at);
  const before = await startAgent(at);
  await page.getByRole("link", { name: before.name }).waitFor();
  if (restart === undefined) {
    await at.dev?.unlisten();
    await page.getByText("The supervisor can’t be reached.").waitFor();
    await page.locator(".connection-down").waitFor();
    await at.dev?.listen();
  } else {
    await promisify(exec)(restart);
  }
  // A supervisor that forgot its sessions asks who is there; the page is where it was after that.
  await page.locator(".connection-live, .login").first().waitFor();
  if ((await page.getByLabel("Token").count()) > 0) {
    await page.getByLabel("Token").fill(at.token);
    await page.getByRole("button", { name: "Log in" }).click();
    await page.locator(".connection-live").waitFor();
  }
  const after = await startAgent(at);
  await page.getByRole("link", { name: after.name }).waitFor();
  assert.equal(await page.getByText("The supervisor can’t be reached.").count(), 0);
});

test("a session that ended leads to the login and back to the same page", async (t) => {
  const at = await madeUp({ agents: 3 });
  const page = await open(t, { expected: REFUSED });
  await logIn(page, at, "#/alerts");
  await at.dev.unlisten();
  at.dev.sessions.clear();
  await at.dev.listen();
  await page.getByText("Your session ended").waitFor();
  await page.getByLabel("Token").fill(at.token);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.locator(".alert", { hasText: "Privilege escalation" }).waitFor();
});

test("a page that was too slow asks for everything again", async (t) => {
  const at = await madeUp({ agents: 3, eventful: false });
  const page = await open(t);
  await logIn(page, at, "#/fleet?phase=all");
  await page.getByText("3 agents", { exact: true }).waitFor();
  const streams = page.waitForRequest("**/v1/stream");
  // The page is not told that this one is gone.
  at.dev.supervisor.agents.delete(at.dev.supervisor.views()[0]?.id ?? "");
  at.dev.loseMessages();
  await streams;
  await page.getByText("2 agents", { exact: true }).waitFor();
  assert.equal(await page.getByText("can’t be reached").count(), 0);
});

test("an entry of the ledger that is open stays open while newer ones come", async (t) => {
  const at = await madeUp({ agents: 3, eventful: false });
  const page = await open(t);
  await logIn(page, at, "#/ledger");
  await page.locator(".entry summary").first().click();
  await page.locator(".entry details[open]").waitFor();
  at.dev.supervisor.record("a_new_entry", {});
  await page.getByRole("button", { name: "Verify now" }).click();
  await page.locator(".entry-kind", { hasText: "a new entry" }).waitFor();
  assert.equal(await page.locator(".entry details[open]").count(), 1);
});

test("a stream that is refused by a supervisor that answers is said to be that", async (t) => {
  const at = await madeUp({ agents: 2 });
  const page = await open(t, { expected: [/status of 429/, ...REFUSED] });
  await page.route("**/v1/stream", (route) =>
    route.fulfill({ status: 429, json: { code: "too_many_streams", message: "as many streams as may be are open" } }),
  );
  await page.goto(at.url);
  await page.getByLabel("Token").fill(at.token);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByText("The supervisor refuses the live stream").waitFor();
  await page.unroute("**/v1/stream");
  await page.getByRole("button", { name: "Retry now" }).click();
  await page.locator(".connection-live").waitFor();
  await page.locator(".row").first().waitFor();
});

test("a page that finds no supervisor says so and can be told to try again", async (t) => {
  const at = await madeUp({ agents: 1 });
  const page = await open(t, { expected: REFUSED });
  await page.route("**/v1/session", (route) => route.abort());
  await page.goto(at.url);
  await page.getByRole("heading", { name: "No answer" }).waitFor();
  await page.unroute("**/v1/session");
  await page.getByRole("button", { name: "Try again" }).click();
  await page.getByLabel("Token").waitFor();
});

test("a viewer sees everything, can do nothing, and is told why", async (t) => {
  const at = await madeUp({ agents: 12 });
  const agent = at.dev.supervisor.views().find((view) => view.phase === "running");
  assert.ok(agent);
  const page = await open(t);
  await logIn(page, at, `#/agents/${agent.id}`, TOKENS.viewer);
  for (const name of ["Quarantine…", "Stop…", "Kill…"]) {
    const button = page.getByRole("button", { name });
    assert.equal(await button.getAttribute("aria-disabled"), "true", name);
    assert.match((await button.getAttribute("title")) ?? "", /needs an operator’s token; yours is a viewer’s/);
    await button.click({ force: true });
    assert.equal(await page.getByRole("dialog").count(), 0, name);
  }
  await page.goto(`${at.url}/#/stop`);
  await page.getByText("This needs an operator’s token").waitFor();
  assert.equal(await page.getByLabel("Reason").isEnabled(), false);
  await page.goto(`${at.url}/#/ledger`);
  assert.equal(await page.getByRole("button", { name: "Verify now" }).getAttribute("aria-disabled"), "true");
});

test("an operator may stop everything, and only an admin resets it", async (t) => {
  const at = await madeUp({ agents: 4 });
  const page = await open(t);
  await logIn(page, at, "#/stop", TOKENS.operator);
  await page.getByLabel("Reason").fill("a drill");
  await page.getByLabel("to confirm").fill("STOP");
  await page.getByRole("button", { name: "Stop everything" }).click();
  await page.getByText("Zero survivors").waitFor();
  assert.equal(await page.getByRole("button", { name: "Reset…" }).getAttribute("aria-disabled"), "true");
});

test("a fleet without agents says how to begin", async (t) => {
  const at = await madeUp({ agents: 0 });
  const page = await open(t);
  await logIn(page, at);
  await page.getByText("Nothing under the glass yet").waitFor();
  const first = await startAgent(at);
  await page.getByRole("link", { name: first.name }).waitFor();
});

test("an address that leads nowhere and an agent nobody knows are said to be that", async (t) => {
  const at = await madeUp({ agents: 1 });
  const page = await open(t, { expected: [/\/v1\/agents\/nobody .*404/] });
  await logIn(page, at, "#/nowhere");
  await page.getByText("There is nothing at this address").waitFor();
  await page.goto(`${at.url}/#/agents/nobody`);
  await page.getByText("This agent is not known").waitFor();
});

test("alerts are acknowledged and resolved, filtered, and counted in the title", async (t) => {
  const at = await madeUp({ agents: 8, eventful: false });
  const page = await open(t);
  await logIn(page, at, "#/alerts");
  await page.getByText("4 alerts").waitFor();
  await page.waitForFunction(() => document.title.startsWith("(3) Alerts"));
  for (const [button, left] of [
    ["Acknowledge", 2],
    ["Resolve", 2],
  ] as const) {
    await page
      .locator(".alert", { hasText: "Privilege escalation" })
      .getByRole("button", { name: `${button}…` })
      .click();
    await page.getByLabel("Reason").fill("seen");
    await page.getByRole("dialog").getByRole("button", { name: button, exact: true }).click();
    await page.getByRole("dialog").waitFor({ state: "detached" });
    await page.waitForFunction((many) => document.title.startsWith(`(${many})`), left);
  }
  await page.getByText("3 alerts").waitFor();
  await page.getByRole("button", { name: "Resolved", exact: true }).click();
  await page.locator(".alert", { hasText: "Privilege escalation" }).getByText("resolved by dev admin").waitFor();
  at.dev.supervisor.raise("LedgerFailure", "critical", undefined, "the disk is full");
  await page.getByRole("button", { name: "Unresolved" }).click();
  await page.getByText("the disk is full").waitFor();
  await page.getByLabel("Severity").selectOption("critical");
  await page.getByText("1 alert", { exact: true }).waitFor();
});

test("events are searched on the server and go on live", async (t) => {
  const at = await madeUp({ agents: 8, eventful: false });
  const page = await open(t);
  await logIn(page, at, "#/events");
  await page.getByRole("button", { name: "Load older events" }).click();
  await page.getByText("120 events").waitFor();
  await page.getByRole("searchbox").fill("a needle");
  await page.getByText("Nothing happened like this").waitFor();
  at.dev.supervisor.happened({ kind: "daemon", severity: "info", text: "a haystack" });
  at.dev.supervisor.happened({ kind: "daemon", severity: "info", text: "a needle in it" });
  await page.getByText("a needle in it").waitFor();
  assert.equal(await page.getByText("a haystack").count(), 0);
  await page.getByRole("searchbox").fill("");
  await page.getByLabel("Kind").selectOption("system_call_refused");
  await page.waitForFunction(
    () =>
      [...document.querySelectorAll(".event-kind")].every((kind) =>
        kind.textContent?.startsWith("system call refused"),
      ) && document.querySelector(".event-kind") !== null,
  );
});
