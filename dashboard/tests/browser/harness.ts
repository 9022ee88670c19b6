/**
 * A browser, and something to point it at: the supervisor at `BELLJAR_URL`, with the admin's token in `BELLJAR_TOKEN`, or else the
 * made-up one of `dev/`. Whatever a page complains about fails the test that opened it.
 */
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { after, type TestContext } from "node:test";
import { type Browser, type BrowserContextOptions, chromium, type Page } from "playwright-core";
import { DevServer, TOKENS } from "../../dev/server.ts";
import type { Settings } from "../../dev/supervisor.ts";
import type { AgentView } from "../../src/api.ts";

/** The longest anything may take to show; only a failure waits that long. */
export const DEADLINE_MS = 20_000;

export interface Target {
  readonly url: string;
  /** An admin's. */
  readonly token: string;
  /** The made-up supervisor, where it is that. */
  readonly dev: DevServer | undefined;
}

const PLACES = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

let browser: Promise<Browser> | undefined;
const servers = new Set<DevServer>();
after(async () => {
  await (await browser)?.close();
  for (const server of servers) await server.close();
});

function launch(): Promise<Browser> {
  const executablePath = process.env.BELLJAR_CHROMIUM ?? PLACES.find((place) => existsSync(place));
  assert.ok(executablePath, "Chromium is missing: apt-get install chromium");
  // Chromium's own box does not start as root, nor in most containers; it only ever sees pages of ours.
  browser ??= chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
  return browser;
}

/** The supervisor the environment names, or a made-up one. */
export async function target(settings: Partial<Settings> = {}): Promise<Target> {
  const url = process.env.BELLJAR_URL;
  if (url === undefined) return madeUp(settings);
  const token = process.env.BELLJAR_TOKEN;
  assert.ok(token, "BELLJAR_TOKEN has to hold an admin's token");
  return { url: url.replace(/\/$/, ""), token, dev: undefined };
}

/** A made-up supervisor, whatever the environment says: for fleets that no test would start for real. */
export async function madeUp(settings: Partial<Settings> = {}): Promise<Target & { dev: DevServer }> {
  const dev = new DevServer(settings);
  await dev.listen();
  servers.add(dev);
  return { url: dev.url, token: TOKENS.admin, dev };
}

/** What a page may complain about: that nobody is logged in, which the browser tells by itself. */
const EXPECTED = [/\/v1\/session .*status of 401/];

/** A page of a new browser window. Errors, refused scripts and styles, and attacks that worked fail the test. */
export async function open(
  test: TestContext,
  options: BrowserContextOptions & { expected?: RegExp[] } = {},
): Promise<Page> {
  const context = await (await launch()).newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(DEADLINE_MS);
  const complaints: string[] = [];
  page.on("pageerror", (error) => complaints.push(`an error: ${error.message}`));
  page.on("console", (message) => {
    if (message.type() === "error") complaints.push(`the console: ${message.location().url} ${message.text()}`);
  });
  page.on("dialog", (dialog) => {
    complaints.push(`a dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  // The compiler of the tests puts a call of this into functions that then run in the page.
  await page.addInitScript("globalThis.__name = (it) => it");
  await page.addInitScript(() => {
    addEventListener("securitypolicyviolation", (event) => {
      console.error(
        `the content security policy refused ${event.violatedDirective} ${event.blockedURI} ${event.sample}`,
      );
    });
  });
  test.after(async () => {
    const attacked = await page.evaluate(() => "pwned" in window).catch(() => false);
    await context.close();
    const allowed = [...EXPECTED, ...(options.expected ?? [])];
    const bad = complaints.filter((complaint) => !allowed.some((pattern) => pattern.test(complaint)));
    assert.deepEqual(bad, [], "the page complained");
    assert.equal(attacked, false, "text of an agent ran in the page");
  });
  return page;
}

export async function logIn(page: Page, at: Target, path = "/", token = at.token): Promise<void> {
  await page.goto(`${at.url}/${path.replace(/^\//, "")}`);
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("navigation", { name: "Pages" }).waitFor();
  await page.locator(".connection-live").waitFor();
}

/** Asks the API as a program does. */
export async function ask<Reply>(at: Target, method: "GET" | "POST", path: string, body?: unknown): Promise<Reply> {
  const response = await fetch(`${at.url}${path}`, {
    method,
    headers: { Authorization: `Bearer ${at.token}`, "Content-Type": "application/json" },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  assert.ok(response.ok, `${method} ${path}: ${response.status} ${text}`);
  return JSON.parse(text) as Reply;
}

let started = 0;

/** Starts an agent with a name of its own. */
export async function startAgent(at: Target, command = ["sleep", "600"]): Promise<AgentView> {
  started += 1;
  return ask<AgentView>(at, "POST", "/v1/agents", { name: `browser-${process.pid}-${started}`, command });
}

/** A page is never wider than its window. */
export async function hasNoSideScroll(page: Page): Promise<boolean> {
  return page.evaluate(() => {
    const content = document.getElementById("content");
    const wide = (element: Element | null) => element !== null && element.scrollWidth > element.clientWidth;
    return !wide(document.documentElement) && !wide(document.body) && !wide(content);
  });
}
