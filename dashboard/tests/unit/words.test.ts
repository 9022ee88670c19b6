/** Text that people type, and entries that they read. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { sort } from "../../src/lib/fleet.ts";
import { lineOf } from "../../src/lib/ledger.ts";
import { splitWords } from "../../src/lib/words.ts";
import { agent } from "./views.ts";

test("a command line is taken apart as people mean it", () => {
  const cases: ReadonlyArray<readonly [string, string[] | undefined]> = [
    ["", []],
    ["  sh  -c 'echo \"a b\"' ", ["sh", "-c", 'echo "a b"']],
    ['a"b c"d \\"x', ["ab cd", '"x']],
    ["a '' b", ["a", "", "b"]],
    ["'a\\b'", ["a\\b"]],
    ["echo 'open", undefined],
    ["echo \\", undefined],
  ];
  for (const [text, expect] of cases) assert.deepEqual(splitWords(text), expect, text);
});

test("an entry says when, what and who, whatever is in it", () => {
  const hash = "a".repeat(64);
  const what = { kind: "act", digest: hash, worker: "w1", reason: "a drill", entry: null };
  const line = lineOf({ index: 7, entry: { v: 1, at: { wall_ms: 5 }, what } });
  assert.deepEqual(line, {
    index: 7,
    at_ms: 5,
    kind: "act",
    who: "w1",
    what: `reason: a drill, digest: ${"a".repeat(12)}…`,
  });
  for (const entry of [null, 3, "x", [], { what: [] }, { what: { kind: 4 }, at: { wall_ms: "5" } }]) {
    assert.equal(lineOf({ index: 0, entry }).kind, "not_understood");
  }
});

test("the worst comes first", () => {
  const make = (id: string, phase: Parameters<typeof agent>[1] & object) => agent(id, phase);
  const all = [
    make("calm", { phase: "running", started_at_ms: 9 }),
    make("ended", { phase: "ended", open_alerts: 3 }),
    make("alerted", { phase: "running", open_alerts: 1 }),
    make("frozen", { phase: "quarantined" }),
    make("worse", { phase: "running", open_alerts: 5 }),
    make("loops", { phase: "crash_loop" }),
    make("older", { phase: "running", started_at_ms: 1 }),
  ];
  const order = sort(all, { key: "worst", down: false }).map((one) => one.id);
  assert.deepEqual(order, ["loops", "frozen", "worse", "alerted", "calm", "older", "ended"]);
});
