/** Changes that agents propose: what a reviewer sees, and what a page must not do. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { TOKENS } from "../../dev/server.ts";
import { logIn, madeUp, open } from "./harness.ts";

const id = (digit: string) => digit.repeat(64);

test("a viewer reads a proposal from the list to its evidence, and gets the exact commands to decide", async (t) => {
  const at = await madeUp({ agents: 3, eventful: false });
  const page = await open(t);
  await logIn(page, at, "#/proposals", TOKENS.viewer);
  await page.getByText("3 proposals", { exact: true }).waitFor();
  await page.getByRole("button", { name: "All" }).click();
  await page.getByText("5 proposals", { exact: true }).waitFor();
  await page.getByRole("link", { name: /score is slow/ }).click();
  await page.getByRole("heading", { name: "score is slow; remember what it gave" }).waitFor();
  const decision = page.getByRole("region", { name: "Decision" });
  await decision.getByText(`belljar evolve approve ${id("1").slice(0, 12)} --as NAME --key FILE`).waitFor();
  // The page has nobody's key: nothing on it decides.
  for (const name of [/approve/i, /reject/i]) assert.equal(await page.getByRole("button", { name }).count(), 0);
  const stage = page.getByRole("region", { name: "Stages" });
  await stage.getByText("5-benchmark").click();
  await stage.getByText("candidate.median_ms").waitFor();
  assert.equal(await page.locator(".diff-plus").count(), 4);
  assert.equal(await page.locator(".diff-minus").count(), 1);
  await page.getByRole("link", { name: "Proposals" }).click();
  await page.locator(".proposal-row").first().waitFor();
});

test("a rollout shows its steps, and one that went back says why", async (t) => {
  const at = await madeUp({ agents: 3, eventful: false });
  const page = await open(t);
  await logIn(page, at, `#/proposals/${id("3")}`);
  const rollout = page.getByRole("region", { name: "Rollout" });
  assert.match((await rollout.locator("[aria-current=step]").textContent()) ?? "", /25 %/);
  await rollout.getByText("2 of 8").waitFor();
  await page.goto(`${at.url}/#/proposals/${id("5")}`);
  await page.getByRole("region", { name: "Rollout" }).getByText("worse at 25 %: error_rate").waitFor();
});

test("what is counted is shown, and risks can be told apart", async (t) => {
  const at = await madeUp({ agents: 3, eventful: false });
  const page = await open(t);
  await logIn(page, at, "#/proposals?show=all");
  await page.getByText("What became of 5 proposals").waitFor();
  await page.locator(".stat-row", { hasText: "test_failed" }).getByText("3", { exact: true }).waitFor();
  await page.getByLabel("Risk").selectOption("critical");
  await page.getByText("1 proposal", { exact: true }).waitFor();
});

test("nothing proposed, nothing open, nothing there and no answer each have a look", async (t) => {
  const at = await madeUp({ agents: 3, eventful: false });
  const page = await open(t, { expected: [/status of (404|403|500)/] });
  await logIn(page, at, `#/proposals/${id("9")}`);
  await page.getByRole("heading", { name: "There is no such proposal" }).waitFor();
  at.dev.supervisor.proposals = at.dev.supervisor.proposals.filter((one) => one.proposal.status === "rejected");
  await page.goto(`${at.url}/#/proposals`);
  await page.getByRole("heading", { name: "Nothing is open" }).waitFor();
  await page.getByRole("button", { name: "Show all 1" }).click();
  await page.locator(".proposal-row").waitFor();
  at.dev.supervisor.proposals = [];
  await page.reload();
  await page.getByRole("heading", { name: "Nobody has proposed anything" }).waitFor();
  await page.route("**/v1/proposals", (route) =>
    route.fulfill({ status: 403, json: { code: "forbidden", message: "This needs the role viewer." } }),
  );
  await page.goto(`${at.url}/#/fleet`);
  await page.goto(`${at.url}/#/proposals`);
  await page.getByRole("alert").getByText("This needs the role viewer.").waitFor();
  await page.unroute("**/v1/proposals");
  await page.getByRole("button", { name: "Try again" }).click();
  await page.getByRole("heading", { name: "Nobody has proposed anything" }).waitFor();
});

test("a proposal whose stages have not run says so", async (t) => {
  const at = await madeUp({ agents: 3, eventful: false });
  const draft = at.dev.supervisor.proposals[0];
  assert.ok(draft);
  Object.assign(draft, { stages: [], files: [], commands: [], digests: null, not_ready: "the stages have not run" });
  draft.proposal.status = "checking";
  const page = await open(t);
  await logIn(page, at, `#/proposals/${draft.proposal.id}`);
  await page.getByText("the stages have not run").waitFor();
  await page.getByText("have not run", { exact: true }).waitFor();
});
