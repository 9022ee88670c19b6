/** Agents that write for whoever looks at them. The harness fails each test in which anything ran or was refused by the policy. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Page } from "playwright-core";
import { HOSTILE_NAMES } from "../../dev/hostile.ts";
import { hasNoSideScroll, logIn, madeUp, open } from "./harness.ts";

/** Elements that only an agent's text could have made. */
async function planted(page: Page): Promise<string[]> {
  return page.evaluate(() => {
    const bad = document.querySelectorAll(
      "#app script, #app img, #app iframe, #app object, #app [onerror], #app [onload], #app [style*=fixed]",
    );
    const links = [...document.querySelectorAll("a")].filter((link) => !/^#/.test(link.getAttribute("href") ?? ""));
    return [...bad, ...links].map((element) => element.outerHTML.slice(0, 200));
  });
}

async function deceives(page: Page): Promise<string[]> {
  return page.evaluate(() => {
    const found: string[] = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node !== null; node = walker.nextNode()) {
      if (/[\u0000-\u0008\u000b-\u001f\u007f\u200b-\u200f\u202a-\u202e\u2066-\u2069]/.test(node.textContent ?? ""))
        found.push(node.textContent ?? "");
    }
    for (const element of document.querySelectorAll("[title]")) {
      if (/[\u202a-\u202e\u2066-\u2069]/.test(element.getAttribute("title") ?? ""))
        found.push(element.getAttribute("title") ?? "");
    }
    return found;
  });
}

for (const width of [1280, 360]) {
  test(`names, commands, output, reasons and tools of hostile agents are text on every page, ${width} pixels wide`, async (t) => {
    const at = await madeUp({ agents: HOSTILE_NAMES.length, hostile: true });
    const page = await open(t, { viewport: { width, height: 800 } });
    await logIn(page, at, "#/fleet?phase=all");
    await page.locator(".row").first().waitFor();
    const agents = at.dev.supervisor.views();
    const pages: Array<readonly [string, string]> = [
      ["/fleet?phase=all", ".row"],
      ["/lineage", ".row"],
      ["/alerts", ".alert"],
      ["/holds", ".alert"],
      ["/proposals?show=all", ".proposal-row"],
      ...["1", "2", "3", "4", "5"].map((digit) => [`/proposals/${digit.repeat(64)}`, ".diff-line"] as const),
      ["/events", ".event"],
      ["/ledger", ".entry"],
    ];
    for (const agent of agents.slice(0, 6)) {
      for (const tab of ["overview", "denials", "output", "events", "processes", "policy"]) {
        pages.push([`/agents/${agent.id}?tab=${tab}`, tab === "output" ? ".output-text" : ".agent-head"]);
      }
    }
    for (const [path, sign] of pages) {
      await page.goto(`${at.url}/#${path}`);
      await page.locator(sign).first().waitFor();
      await page.waitForFunction(() => document.querySelectorAll(".pulse").length === 0);
      assert.deepEqual(await planted(page), [], path);
      assert.deepEqual(await deceives(page), [], path);
      assert.ok(await hasNoSideScroll(page), `${path} is wider than its window`);
    }
  });
}

test("markup in a name is read as it was written", async (t) => {
  const at = await madeUp({ agents: HOSTILE_NAMES.length, hostile: true });
  const page = await open(t);
  await logIn(page, at, "#/fleet?phase=all");
  await page
    .getByText(HOSTILE_NAMES[0] ?? "", { exact: true })
    .first()
    .waitFor();
  await page.getByText("safe‹U+202E›gnp.exe", { exact: true }).first().waitFor();
});

test("dialogs that name an agent name it as text, and so does the record of a reason", async (t) => {
  const at = await madeUp({ agents: 4, hostile: true });
  const attack = '<img src=x onerror="window.pwned=1">';
  const agent = at.dev.supervisor.startAgent(attack, [attack]);
  const page = await open(t);
  await logIn(page, at, `#/agents/${agent.id}`);
  await page.getByRole("button", { name: "Kill…" }).click();
  await page.getByRole("dialog").getByText(attack).waitFor();
  await page.getByLabel("Reason").fill(attack);
  await page.getByRole("dialog").getByRole("button", { name: "Kill", exact: true }).click();
  await page.locator(".notice", { hasText: attack }).waitFor();
  assert.deepEqual(await planted(page), []);
});

test("an error's text from the server is text", async (t) => {
  const at = await madeUp({ agents: 1 });
  const page = await open(t, { expected: [/status of 500/] });
  await logIn(page, at);
  const attack = "<script>window.pwned=1</script>";
  await page.route("**/v1/ledger", (route) =>
    route.fulfill({ status: 500, json: { code: attack, message: attack, hint: attack } }),
  );
  await page.goto(`${at.url}/#/ledger`);
  await page.getByRole("alert").getByText(attack).first().waitFor();
  assert.deepEqual(await planted(page), []);
});
