/** Starting agents, and answering many alerts: with a made-up supervisor. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Page } from "playwright-core";
import { logIn, madeUp, open } from "./harness.ts";

async function giveReason(page: Page, reason: string, action: string): Promise<void> {
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Reason").fill(reason);
  await dialog.getByRole("button", { name: action, exact: true }).click();
}

test("an agent is started and started anew, and the tab has its name", async (t) => {
  const at = await madeUp({ agents: 1, eventful: false });
  const page = await open(t);
  await logIn(page, at);
  await page.getByRole("button", { name: "Start an agent…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Name").fill("clerk");
  await dialog.getByLabel("Command").fill("sh -c 'sleep 9");
  await dialog.getByText("A quote is not closed.").waitFor();
  await dialog.getByLabel("Command").fill("sh -c 'sleep 9'");
  await dialog.getByRole("button", { name: "Start", exact: true }).click();
  await page.getByRole("heading", { level: 1, name: "clerk" }).waitFor();
  await page.waitForFunction(() => document.title.includes("clerk"));
  const started = at.dev.supervisor.views().find((view) => view.name === "clerk");
  assert.equal(started?.command, "sh -c sleep 9");
  await page.getByRole("button", { name: "Restart…" }).click();
  await giveReason(page, "a drill", "Restart");
  await page.waitForFunction(() => document.querySelector("dialog") === null);
});

test("many alerts are resolved together, and a silence holds until it is ended", async (t) => {
  const at = await madeUp({ agents: 6, eventful: false });
  const { supervisor } = at.dev;
  supervisor.alerts.clear();
  for (const agent of supervisor.agents.values()) supervisor.raise("AgentCrashed", "warning", agent, "it crashed");
  const page = await open(t);
  await logIn(page, at, "#/alerts");
  await page.locator(".alert-group .alert").nth(5).waitFor();
  await page.getByRole("button", { name: "Silence…" }).first().click();
  await giveReason(page, "it is known", "Silence");
  await page.locator(".silences li").waitFor();
  await page.locator(".alert .tag", { hasText: "silenced" }).waitFor();
  await page.getByRole("button", { name: "End…" }).click();
  await giveReason(page, "no more", "End");
  await page.locator(".silences li").waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Resolve all 6…" }).first().click();
  await giveReason(page, "a drill", "Resolve all");
  await page.getByText("No alert needs you.").waitFor();
  assert.ok([...supervisor.alerts.values()].every((alert) => alert.state === "resolved"));
});
