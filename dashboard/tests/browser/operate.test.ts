/** What an operator does, against the supervisor of the environment or a made-up one. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { AgentList, AgentView } from "../../src/api.ts";
import { ask, logIn, open, startAgent, type Target, target } from "./harness.ts";

const BUSY = ["sh", "-c", "while :; do :; done"];

async function phaseOf(at: Target, id: string): Promise<AgentView["phase"] | undefined> {
  const { agents } = await ask<AgentList>(at, "GET", "/v1/agents?ended=true");
  return agents.find((agent) => agent.id === id)?.phase;
}

test("a wrong token is refused in words, and the right one lets in", async (t) => {
  const at = await target();
  const page = await open(t, { expected: [/\/v1\/session .*status of 40[13]/] });
  await page.goto(at.url);
  await page.getByLabel("Token").fill("not-a-token");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("alert").waitFor();
  await logIn(page, at);
  await page.getByRole("button", { name: "Log out" }).click();
  await page.getByLabel("Token").waitFor();
  // The session is over on the server too, not just on the screen.
  await page.reload();
  await page.getByLabel("Token").waitFor();
});

test("a new agent appears without a reload", async (t) => {
  const at = await target({ agents: 3 });
  const page = await open(t);
  await logIn(page, at);
  const agent = await startAgent(at);
  await page.getByRole("link", { name: agent.name }).waitFor();
  await page.getByRole("searchbox").fill(agent.name);
  await page.getByText("1 agent", { exact: true }).waitFor();
  await ask(at, "POST", `/v1/workers/${agent.id}/kill`, { reason: "the test is over", subtree: true });
});

test("a graph moves while an agent works", async (t) => {
  const at = await target({ agents: 1, every: 200 });
  const agent = await startAgent(at, BUSY);
  const page = await open(t);
  await logIn(page, at, `#/agents/${agent.id}`);
  const cpu = page.locator(".chart-plot").first();
  await cpu.locator("canvas").waitFor();
  const before = Number(await cpu.getAttribute("data-last"));
  const drawn = () =>
    page
      .locator(".chart-plot canvas")
      .first()
      .evaluate((canvas) => (canvas as HTMLCanvasElement).toDataURL());
  const picture = await drawn();
  await page.waitForFunction(
    (was) => Number(document.querySelector(".chart-plot")?.getAttribute("data-last")) > was + 1,
    before,
  );
  // They are known before they are drawn, which waits for the browser's next frame. A graph that stands still ends the test.
  await page.waitForFunction(
    (was) => document.querySelector<HTMLCanvasElement>(".chart-plot canvas")?.toDataURL() !== was,
    picture,
  );
  await ask(at, "POST", `/v1/workers/${agent.id}/kill`, { reason: "the test is over", subtree: true });
});

test("an agent is quarantined, released, stopped and killed, each with a reason", async (t) => {
  const at = await target({ agents: 2 });
  const [first, second] = [await startAgent(at), await startAgent(at)];
  const page = await open(t);
  await logIn(page, at, `#/agents/${first.id}`);
  const act = async (button: string, confirm: string) => {
    await page.getByRole("button", { name: `${button}…` }).click();
    const dialog = page.getByRole("dialog");
    // Without a reason nothing happens.
    await dialog.getByRole("button", { name: confirm, exact: true }).click();
    await dialog.getByText("Say why").waitFor();
    await dialog.getByLabel("Reason").fill("a test of the dashboard");
    await dialog.getByRole("button", { name: confirm, exact: true }).click();
    await dialog.waitFor({ state: "detached" });
  };
  const shows = (phase: string) => page.locator(".agent-head .phase", { hasText: phase }).waitFor();

  await act("Quarantine", "Quarantine");
  await shows("quarantined");
  assert.equal(await phaseOf(at, first.id), "quarantined");
  await act("Release", "Release");
  await shows("running");
  assert.equal(await phaseOf(at, first.id), "running");
  await act("Kill", "Kill");
  await shows("ended");
  assert.equal(await phaseOf(at, first.id), "ended");
  await page.getByText("0 survivors").waitFor();
  await page.getByText("a test of the dashboard").first().waitFor();

  await page.goto(`${at.url}/#/agents/${second.id}`);
  await act("Stop", "Stop");
  await shows("ended");
  assert.equal(await phaseOf(at, second.id), "ended");
});

test("the emergency stop needs the word, counts 20 agents down to zero, and an admin resets it", async (t) => {
  const at = await target({ agents: 0 });
  for (let one = 0; one < 20; one += 1) await startAgent(at);
  const page = await open(t);
  await logIn(page, at, "#/stop");
  const stop = page.getByRole("button", { name: "Stop everything" });
  await page.getByLabel("Reason").fill("a drill");
  await page.getByLabel("to confirm").fill("stop");
  assert.equal(await stop.isEnabled(), false, "the word is in capitals");
  await page.getByLabel("to confirm").fill("STOP");
  // The numbers on the way down are kept as they are shown.
  await page.evaluate(() => {
    const seen: number[] = [];
    Object.assign(window, { seen });
    new MutationObserver(() => {
      const shown = document.querySelector("[data-testid=survivors]")?.textContent;
      if (shown && seen.at(-1) !== Number(shown)) seen.push(Number(shown));
    }).observe(document.body, { subtree: true, childList: true, characterData: true });
  });
  await stop.click();
  await page.getByText("Zero survivors").waitFor();
  const seen = await page.evaluate(() => (window as unknown as { seen: number[] }).seen);
  assert.equal(seen.at(-1), 0);
  assert.ok((seen[0] ?? 0) >= 1, `the count began at ${seen[0]}`);
  assert.deepEqual(
    seen,
    [...seen].sort((a, b) => b - a),
    "the count only goes down",
  );
  const report = page.getByRole("region", { name: "Report" });
  await report.getByText("Survivors").waitFor();
  const { agents } = await ask<AgentList>(at, "GET", "/v1/agents?ended=true");
  assert.deepEqual(
    agents.filter((agent) => agent.phase !== "ended" && agent.phase !== "crash_loop"),
    [],
  );

  await page.goto(`${at.url}/#/`);
  const banner = page.getByRole("region", { name: "Kill switch" });
  await banner.getByText("a drill").waitFor();
  await banner.getByRole("button", { name: "Reset…" }).click();
  await page.getByLabel("Reason").fill("the drill is over");
  await page.getByRole("dialog").getByRole("button", { name: "Reset", exact: true }).click();
  await banner.waitFor({ state: "detached" });
  const again = await startAgent(at);
  await page.getByRole("link", { name: again.name }).waitFor();
  await ask(at, "POST", `/v1/workers/${again.id}/kill`, { reason: "the test is over", subtree: true });
});

test("the ledger is verified, an entry is proved, and all of it is downloaded", async (t) => {
  const at = await target({ agents: 3 });
  const agent = await startAgent(at);
  await ask(at, "POST", `/v1/workers/${agent.id}/kill`, { reason: "for the ledger", subtree: true });
  const page = await open(t);
  await logIn(page, at, "#/ledger");
  await page.getByRole("button", { name: "Verify now" }).click();
  await page.getByRole("heading", { name: "Whole" }).waitFor();
  await page.locator(".entry summary").first().click();
  await page.getByRole("button", { name: "Prove" }).first().click();
  await page.getByRole("dialog").getByText("c2sp.org/tlog-proof").waitFor();
  const proof = page.waitForEvent("download");
  await page.getByRole("dialog").getByRole("button", { name: "Download" }).click();
  assert.match((await proof).suggestedFilename(), /^belljar-entry-\d+\.proof$/);
  await page.getByRole("button", { name: "Close" }).click();
  const all = page.waitForEvent("download");
  await page.getByRole("button", { name: "Download all" }).click();
  assert.equal((await all).suggestedFilename(), "belljar-ledger.jsonl");
});
