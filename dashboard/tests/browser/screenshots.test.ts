/** Pictures of every page for the documentation: `BELLJAR_BLESS=1 npm run test:browser` draws them anew. */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import type { Page } from "playwright-core";
import { hasNoSideScroll, logIn, madeUp, open, type Target } from "./harness.ts";

const PLACE = new URL("../../../docs/screenshots/", import.meta.url);
const MOST_BYTES = 200 * 1024;
const SIZES = {
  desktop: { viewport: { width: 1280, height: 800 } },
  phone: { viewport: { width: 360, height: 740 }, deviceScaleFactor: 2, hasTouch: true, isMobile: true },
} as const;

/** Those that the documentation shows. The others are drawn to see that nothing is too wide. */
const KEPT =
  /^(fleet|agent|lineage|alerts|proposals|proposal|ledger|stop|stopped)-(light|dark)$|^(fleet|agent|alerts|stop)-phone-dark$|^login-light$/;

/** A picture for a repository: fewer colours, where the program that does it is there. */
function packed(picture: Buffer): Buffer {
  const { status, stdout } = spawnSync("pngquant", ["--strip", "--speed", "1", "128", "-"], { input: picture });
  return status === 0 ? stdout : picture;
}

async function shoot(page: Page, name: string): Promise<void> {
  assert.ok(await hasNoSideScroll(page), `${name} is wider than its window`);
  const picture = await page.screenshot({ animations: "disabled" });
  if (process.env.BELLJAR_BLESS === undefined || !KEPT.test(name)) return;
  mkdirSync(PLACE, { recursive: true });
  const small = packed(picture);
  assert.ok(small.length <= MOST_BYTES, `${name} has ${small.length} bytes: is pngquant there?`);
  writeFileSync(new URL(`${name}.png`, PLACE), small);
}

async function settled(page: Page, at: Target, path: string, sign: string): Promise<void> {
  await page.goto(`${at.url}/#${path}`);
  await page.locator(sign).first().waitFor();
  // Sparklines need a few samples to be lines.
  await page.waitForFunction(() => document.querySelectorAll(".pulse").length === 0);
}

for (const size of ["desktop", "phone"] as const) {
  for (const colorScheme of ["light", "dark"] as const) {
    test(`every page is drawn on a ${size} in ${colorScheme} colours`, async (t) => {
      const at = await madeUp({ agents: 40, every: 150, seed: 11 });
      const page = await open(t, { ...SIZES[size], colorScheme, expected: [/net::ERR_/] });
      const name = (what: string) => `${what}-${size === "phone" ? "phone-" : ""}${colorScheme}`;
      await page.goto(at.url);
      await page.getByLabel("Token").waitFor();
      await shoot(page, name("login"));
      await logIn(page, at);
      await page.waitForFunction(
        () => (document.querySelector(".spark-line")?.getAttribute("d")?.split("L").length ?? 0) > 59,
      );
      await shoot(page, name("fleet"));

      const root = at.dev.supervisor
        .views()
        .find((view) => view.phase === "running" && at.dev.supervisor.agents.get(view.id)?.denials.length === 5);
      assert.ok(root, "the made-up fleet has an agent with denials");
      await settled(page, at, `/agents/${root.id}`, ".uplot canvas");
      await shoot(page, name("agent"));
      await page.getByRole("button", { name: "Quarantine…" }).click();
      await page.getByLabel("Reason").fill("It asks for hosts it has no business with");
      await shoot(page, name("quarantine"));
      await page.keyboard.press("Escape");
      await settled(page, at, `/agents/${root.id}?tab=denials`, ".denial");
      await shoot(page, name("denials"));
      await settled(page, at, `/agents/${root.id}?tab=output`, ".output-text");
      await page.getByText("Following.").waitFor();
      await shoot(page, name("output"));
      await settled(page, at, "/lineage", ".branch");
      await shoot(page, name("lineage"));
      await settled(page, at, "/alerts", ".alert");
      await shoot(page, name("alerts"));
      await settled(page, at, "/proposals?show=all", ".proposal-row");
      await shoot(page, name("proposals"));
      await settled(page, at, `/proposals/${"3".repeat(64)}`, ".diff-line");
      await shoot(page, name("proposal"));
      await settled(page, at, "/events", ".event");
      await shoot(page, name("events"));
      await settled(page, at, "/ledger", ".entry");
      await page.getByRole("button", { name: "Verify now" }).click();
      await page.getByText("Whole", { exact: true }).waitFor();
      await shoot(page, name("ledger"));
      await settled(page, at, "/stop", ".stop-form");
      await page.getByLabel("Reason").fill("An agent reaches for hosts it has no business with");
      await page.getByLabel("to confirm").fill("STOP");
      await shoot(page, name("stop"));
      await page.getByRole("button", { name: "Stop everything" }).click();
      await page.getByRole("region", { name: "Report" }).waitFor();
      await page.getByText("Zero survivors").waitFor();
      await shoot(page, name("stopped"));
      await settled(page, at, "/fleet?phase=all", ".row");
      await at.dev.unlisten();
      await page.getByText("The supervisor can’t be reached.").waitFor();
      await shoot(page, name("offline"));
    });
  }
}
