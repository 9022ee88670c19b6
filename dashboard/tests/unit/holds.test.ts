import assert from "node:assert/strict";
import { test } from "node:test";
import type { HoldView } from "../../src/api.ts";
import { timeLeft, urgent, why } from "../../src/lib/holds.ts";
import { parseRoute } from "../../src/router.ts";

const hold = (id: string, deadline_ms: number): HoldView => ({
  id,
  run: "r",
  server: "files",
  tool: "remove",
  arguments: "{}",
  code: "hold_tool",
  rule: "capability.yaml:7",
  opened_at_ms: 0,
  deadline_ms,
});

test("the most urgent call comes first and what is over is gone", () => {
  const shown = urgent([hold("late", 9000), hold("over", 1000), hold("soon", 2000)], 1000);
  assert.deepEqual(
    shown.map((one) => one.id),
    ["soon", "late"],
  );
});

test("the time that is left is told in seconds, then minutes, and never below none", () => {
  assert.equal(timeLeft(hold("a", 1500), 0), "2 s left");
  assert.equal(timeLeft(hold("a", 600_000), 0), "10 min left");
  assert.equal(timeLeft(hold("a", 0), 5000), "0 s left");
});

test("a reason is told in words, and one not known as it is", () => {
  assert.match(why("hold_new_tool"), /new or changed/);
  assert.equal(why("something_else"), "something_else");
});

test("the page of held calls has an address", () => {
  assert.equal(parseRoute("#/holds").page, "holds");
});
