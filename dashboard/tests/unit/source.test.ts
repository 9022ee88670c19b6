/** Rules that hold for the source as a whole. */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

const root = new URL("../../", import.meta.url);
const sources = (readdirSync(new URL("src/", root), { recursive: true }) as string[])
  .filter((name) => /\.tsx?$/.test(name))
  .map((name) => [name, readFileSync(new URL(`src/${name}`, root), "utf8")] as const);

test("text never becomes markup or code: nothing that could do that is in the source", () => {
  const forbidden =
    /innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function|srcdoc|style="/;
  for (const [name, text] of sources) assert.doesNotMatch(text, forbidden, name);
});

test("nothing comes from elsewhere", () => {
  for (const [name, text] of sources) assert.doesNotMatch(text, /https?:\/\//, name);
  const page = readFileSync(new URL("index.html", root), "utf8");
  assert.doesNotMatch(page, /https?:\/\/|style=|<style|onload=|<script(?![^>]* src=)/);
});

test("files stay short", () => {
  for (const [name, text] of sources) {
    if (name !== "api.ts") assert.ok(text.split("\n").length <= 350, name);
  }
});

test("what is shipped is under a licence that permits it", () => {
  const { packages } = JSON.parse(readFileSync(new URL("package-lock.json", root), "utf8")) as {
    packages: Record<string, { license?: string; resolved?: string }>;
  };
  const fine = new Set(["MIT", "ISC", "BSD-3-Clause", "BSD-2-Clause", "Apache-2.0", "MIT OR Apache-2.0", "0BSD"]);
  for (const [name, { license }] of Object.entries(packages)) {
    assert.ok(license !== undefined && fine.has(license), `${name}: ${license}`);
  }
});
