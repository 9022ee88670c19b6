/** For everybody: contrast, keyboard, small screens. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Page } from "playwright-core";
import { TOKENS } from "../../dev/server.ts";
import { hasNoSideScroll, logIn, madeUp, open } from "./harness.ts";

/** Texts whose contrast with what is behind them is below what WCAG AA asks for: 4.5, or 3 where they are large. */
async function faint(page: Page): Promise<string[]> {
  return page.evaluate(() => {
    type Colour = [number, number, number, number];
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    // Whatever way a colour is written, the browser itself says what it is.
    const read = (text: string): Colour => {
      if (canvas === null) return [0, 0, 0, 0];
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = text;
      canvas.fillRect(0, 0, 1, 1);
      const [r = 0, g = 0, b = 0, a = 0] = canvas.getImageData(0, 0, 1, 1).data;
      return [r, g, b, a / 255];
    };
    const over = (top: Colour, below: Colour): Colour => {
      const mix = (at: 0 | 1 | 2) => top[at] * top[3] + below[at] * (1 - top[3]);
      return [mix(0), mix(1), mix(2), 1];
    };
    const behind = (element: Element): Colour => {
      const layers: Colour[] = [];
      for (let one: Element | null = element; one !== null; one = one.parentElement)
        layers.push(read(getComputedStyle(one).backgroundColor));
      return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1] as Colour);
    };
    const light = ([r, g, b]: Colour) => {
      const part = (value: number) =>
        value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4;
      return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
    };
    const found = new Set<string>();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node !== null; node = walker.nextNode()) {
      const element = node.parentElement;
      if (
        element === null ||
        !node.textContent?.trim() ||
        !element.checkVisibility({ opacityProperty: true }) ||
        element.closest(".hidden, .skip, option")
      )
        continue;
      const style = getComputedStyle(element);
      const back = behind(element);
      const [a, b] = [light(over(read(style.color), back)), light(back)];
      const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      const size = Number.parseFloat(style.fontSize);
      const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
      if (contrast < (isLarge ? 3 : 4.5))
        found.add(`${contrast.toFixed(2)} “${node.textContent.trim().slice(0, 40)}” ${element.className}`);
    }
    return [...found];
  });
}

for (const colorScheme of ["light", "dark"] as const) {
  test(`every text on every page can be read in ${colorScheme} colours`, async (t) => {
    const at = await madeUp({ agents: 60, seed: 5 });
    const page = await open(t, { colorScheme });
    await page.goto(at.url);
    await page.getByLabel("Token").waitFor();
    assert.deepEqual(await faint(page), [], "login");
    await logIn(page, at);
    const agents = at.dev.supervisor.views();
    const phases = new Map(agents.map((agent) => [agent.phase, agent.id]));
    assert.ok(phases.size >= 4, "the fleet shows most phases");
    const paths = [
      "/fleet?phase=all&sort=phase",
      "/lineage",
      "/alerts",
      "/alerts?state=resolved",
      "/holds",
      "/proposals?show=all",
      `/proposals/${"1".repeat(64)}`,
      `/proposals/${"3".repeat(64)}`,
      `/proposals/${"5".repeat(64)}`,
      "/events",
      "/ledger",
      "/stop",
      "/nowhere",
    ];
    for (const id of phases.values())
      for (const tab of ["overview", "denials", "output", "policy", "processes"])
        paths.push(`/agents/${id}?tab=${tab}`);
    for (const path of paths) {
      await page.goto(`${at.url}/#${path}`);
      await page.locator("#content > *").first().waitFor();
      await page.waitForFunction(() => document.querySelectorAll(".pulse").length === 0);
      assert.deepEqual(await faint(page), [], path);
    }
    await page.keyboard.press("?");
    await page.getByRole("dialog").waitFor();
    assert.deepEqual(await faint(page), [], "shortcuts");
    await page.keyboard.press("Escape");
    await page.goto(`${at.url}/#/stop`);
    await page.getByLabel("Reason").fill("a drill");
    await page.getByLabel("to confirm").fill("STOP");
    await page.getByRole("button", { name: "Stop everything" }).click();
    await page.getByText("Zero survivors").waitFor();
    assert.deepEqual(await faint(page), [], "stopped");
  });
}

test("a viewer's disabled actions can be read too", async (t) => {
  const at = await madeUp({ agents: 5 });
  const page = await open(t, { colorScheme: "dark" });
  await logIn(page, at, `#/agents/${at.dev.supervisor.views()[0]?.id}`, TOKENS.viewer);
  await page.getByRole("button", { name: "Kill…" }).waitFor();
  assert.deepEqual(await faint(page), []);
});

const focused = (page: Page) =>
  page.evaluate(() => {
    const element = document.activeElement;
    return element === null
      ? ""
      : `${element.tagName.toLowerCase()} ${element.getAttribute("aria-label") ?? element.textContent ?? ""}`.trim();
  });

/** Presses Tab until what has the focus matches. */
async function tabTo(page: Page, pattern: RegExp): Promise<void> {
  const seen: string[] = [];
  for (let press = 0; press < 60; press += 1) {
    const now = await focused(page);
    if (pattern.test(now)) {
      const isSeen = await page.evaluate(() => {
        const element = document.activeElement;
        const shown = element?.closest(".row") ?? element;
        return shown !== null && shown !== undefined && getComputedStyle(shown).outlineStyle !== "none";
      });
      assert.ok(isSeen, `${now} shows that it has the focus`);
      return;
    }
    seen.push(now);
    await page.keyboard.press("Tab");
  }
  assert.fail(`Tab never came to ${pattern}: ${seen.join(" | ")}`);
}

test("everything is done by keyboard alone: log in, find an agent, quarantine it, stop everything", async (t) => {
  const at = await madeUp({ agents: 30, eventful: false });
  const agent = at.dev.supervisor.views().find((view) => view.phase === "running");
  assert.ok(agent);
  const page = await open(t);
  await page.goto(at.url);
  await page.getByLabel("Token").waitFor();
  await page.keyboard.type(at.token);
  await page.keyboard.press("Enter");
  await page.locator(".row").first().waitFor();

  await page.keyboard.press("Tab");
  assert.match(await focused(page), /Skip to the content/);
  await page.keyboard.press("Enter");
  assert.match(await focused(page), /^main/);

  await page.keyboard.press("/");
  await page.keyboard.type(agent.name);
  await page.getByText("1 agent", { exact: true }).waitFor();
  await tabTo(page, new RegExp(`^a ${agent.name}`));
  await page.keyboard.press("Enter");
  await page.locator(".agent-head").waitFor();
  await tabTo(page, /^button Quarantine…/);
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").waitFor();
  for (let press = 0; press < 12; press += 1) {
    await page.keyboard.press("Tab");
    assert.ok(
      await page.evaluate(
        () => document.activeElement === document.body || document.activeElement?.closest("dialog") !== null,
      ),
      "the focus stays in the dialog",
    );
  }
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  assert.match(await focused(page), /Quarantine…/, "the focus comes back");
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").waitFor();
  await page.keyboard.type("by keyboard");
  await page.keyboard.press("Enter");
  await page.locator(".agent-head .phase-quarantined").waitFor();

  await page.keyboard.press("g");
  await page.keyboard.press("s");
  await tabTo(page, /^input/);
  await page.keyboard.type("by keyboard");
  await page.keyboard.press("Tab");
  await page.keyboard.type("STOP");
  await page.keyboard.press("Enter");
  await page.getByText("Zero survivors").waitFor();
});

test("j and k walk through more rows than are drawn", async (t) => {
  const at = await madeUp({ agents: 200, eventful: false });
  const page = await open(t);
  await logIn(page, at, "#/fleet?phase=all&sort=name");
  const focusedRow = (row: number) =>
    page.waitForFunction(
      (row) => Number(document.activeElement?.closest(".row")?.getAttribute("aria-rowindex")) === row,
      row,
    );
  await page.locator(".row[aria-rowindex='2']").waitFor();
  // Nobody presses a key sooner than the browser draws what the last one did.
  for (let row = 2; row <= 81; row += 1) {
    await page.keyboard.press("j");
    await focusedRow(row);
  }
  await page.keyboard.press("k");
  await focusedRow(80);
});

test("single keys can be turned off, and the list says which there are", async (t) => {
  const at = await madeUp({ agents: 2 });
  const page = await open(t);
  await logIn(page, at);
  await page.keyboard.press("?");
  await page.getByRole("dialog").getByText("Emergency stop").waitFor();
  await page.getByLabel("Single-key shortcuts").uncheck();
  await page.keyboard.press("Escape");
  await page.keyboard.press("t");
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "light");
});

test("light and dark follow the system until somebody chooses, and the choice stays", async (t) => {
  const at = await madeUp({ agents: 2 });
  const page = await open(t, { colorScheme: "dark" });
  await logIn(page, at);
  const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
  assert.equal(await theme(), "dark");
  await page.emulateMedia({ colorScheme: "light" });
  // The page hears of it in its own time.
  await page.waitForFunction(() => document.documentElement.dataset.theme === "light");
  await page.getByRole("button", { name: "Use dark colours" }).click();
  await page.reload();
  await page.locator(".connection-live").waitFor();
  assert.equal(await theme(), "dark");
});

test("every page fits a window 360 pixels wide, and what is touched is large enough", async (t) => {
  const at = await madeUp({ agents: 40 });
  const page = await open(t, { viewport: { width: 360, height: 700 }, hasTouch: true, isMobile: true });
  await logIn(page, at);
  const id = at.dev.supervisor.views().find((view) => view.phase === "running")?.id;
  const tabs = ["overview", "denials", "output", "events", "processes", "policy"].map(
    (tab) => `/agents/${id}?tab=${tab}`,
  );
  for (const path of [
    "/fleet",
    "/lineage",
    "/alerts",
    "/holds",
    "/proposals?show=all",
    `/proposals/${"3".repeat(64)}`,
    "/events",
    "/ledger",
    "/stop",
    ...tabs,
  ]) {
    await page.goto(`${at.url}/#${path}`);
    await page.locator("#content > *").first().waitFor();
    await page.waitForFunction(() => document.querySelectorAll(".pulse").length === 0);
    assert.ok(await hasNoSideScroll(page), `${path} is wider than its window`);
    const small = await page.evaluate(() =>
      [...document.querySelectorAll("button, .nav a, .stop-link, select")]
        .filter((element) => element.checkVisibility())
        .filter((element) => element.getBoundingClientRect().height < 24 || element.getBoundingClientRect().width < 24)
        .map((element) => element.outerHTML.slice(0, 80)),
    );
    // WCAG 2.2 asks for 24 pixels.
    assert.deepEqual(small, [], path);
  }
});
