import assert from "node:assert/strict";
import { test } from "node:test";
import { timeLeft, urgent, why } from "../../src/lib/holds.ts";
import { parseRoute } from "../../src/router.ts";
import { hold } from "./views.ts";

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
