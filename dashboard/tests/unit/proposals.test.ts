import assert from "node:assert/strict";
import { test } from "node:test";
import { makeProposals } from "../../dev/proposals.ts";
import { bars, isOpen, ordered, share, tally } from "../../src/lib/proposals.ts";
import { parseRoute } from "../../src/router.ts";

test("what waits for people comes first, then the newest", () => {
  const rows = makeProposals(1e12, false).map((one) => one.proposal);
  const shown = ordered([...rows].reverse());
  assert.deepEqual(
    shown.map((row) => row.id[0]),
    ["1", "2", "3", "4", "5"],
  );
});

test("a rollout is open until it has ended", () => {
  assert.equal(isOpen({ status: "deployed", rollout: "25 %" }), true);
  assert.equal(isOpen({ status: "deployed", rollout: "done" }), false);
  assert.equal(isOpen({ status: "rejected" }), false);
  assert.equal(isOpen({ status: "approved" }), true);
});

test("counts are told the largest first, as shares of it, whatever they are called", () => {
  assert.deepEqual(bars({ b: 1, a: 1, c: 4 }), [
    { name: "c", value: 4, share: 1 },
    { name: "a", value: 1, share: 0.25 },
    { name: "b", value: 1, share: 0.25 },
  ]);
  assert.deepEqual(bars({}), []);
  assert.equal(share(0.01234), "1.23 %");
});

test("stages are added up by how they went", () => {
  const rejected = makeProposals(1e12, false)[3];
  assert.deepEqual(tally(rejected?.stages ?? []), { pass: 4, fail: 1, not_asked: 3 });
});

test("a proposal has an address, and nothing else has one like it", () => {
  assert.equal(parseRoute(`#/proposals/${"a".repeat(64)}`).page, "proposal");
  assert.equal(parseRoute("#/proposals").page, "proposals");
  for (const bad of ["#/proposals/abc", `#/proposals/${"A".repeat(64)}`, `#/proposals/${"a".repeat(64)}/x`])
    assert.equal(parseRoute(bad).page, "missing", bad);
});
