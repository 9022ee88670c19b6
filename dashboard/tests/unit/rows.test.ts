import assert from "node:assert/strict";
import { test } from "node:test";
import { Ring, sparkPath } from "../../src/lib/ring.ts";
import { treeRows } from "../../src/lib/tree.ts";
import { rowsInView, scrollToRow } from "../../src/lib/virtual.ts";
import { parseRoute } from "../../src/router.ts";
import { agent, usage } from "./views.ts";

test("every row in view is drawn and few others are, wherever one scrolls", () => {
  const [height, view, rows] = [48, 700, 1000];
  for (let scrolled = -500; scrolled < rows * height + 500; scrolled += 37) {
    const { from, to } = rowsInView(scrolled, view, height, rows);
    assert.ok(from >= 0 && from <= to && to <= rows);
    assert.ok(to - from <= Math.ceil(view / height) + 1 + 16, `${to - from} rows at ${scrolled}`);
    const first = Math.max(0, Math.floor(scrolled / height));
    const last = Math.min(rows - 1, Math.floor((scrolled + view - 1) / height));
    for (let row = first; row <= last; row += 1) assert.ok(row >= from && row < to, `row ${row} at ${scrolled}`);
  }
});

test("no rows, or rows without a height, are nothing to draw", () => {
  assert.deepEqual(rowsInView(0, 700, 48, 0), { from: 0, to: 0 });
  assert.deepEqual(rowsInView(0, 700, 0, 10), { from: 0, to: 0 });
});

test("a row that is in view needs no scrolling, another as little as possible", () => {
  assert.equal(scrollToRow(5, 100, 500, 48), 100);
  assert.equal(scrollToRow(0, 100, 500, 48), 0);
  assert.equal(scrollToRow(20, 100, 500, 48), 21 * 48 - 500);
});

test("a ring keeps the last values, oldest first", () => {
  const ring = new Ring(3);
  assert.deepEqual(ring.values(), []);
  for (const value of [1, 2, 3, 4, 5]) ring.push(value);
  assert.deepEqual(ring.values(), [3, 4, 5]);
  assert.equal(ring.length, 3);
});

test("a sparkline ends at the right edge and never leaves its field", () => {
  assert.equal(sparkPath([1], 10, 60, 64, 18), "");
  assert.equal(sparkPath([0, 5, 20], 10, 3, 64, 20), "M0.0 20.0L32.0 10.0L64.0 0.0");
  assert.equal(sparkPath([0, 0], 0, 2, 64, 20), "M0.0 20.0L64.0 20.0");
});

const family = () =>
  new Map(
    [
      agent("root", { started_at_ms: 1, usage: usage({ micro_usd: 1 }) }),
      agent("b", { parent: "root", started_at_ms: 3, usage: usage({ micro_usd: 10 }) }),
      agent("a", {
        parent: "root",
        started_at_ms: 2,
        phase: "ended",
        usage: usage({ micro_usd: 100, cpu_percent: 9 }),
      }),
      agent("a1", { parent: "a", started_at_ms: 4, usage: usage({ cpu_percent: 2 }) }),
      agent("orphan", { parent: "forgotten", started_at_ms: 5 }),
    ].map((one) => [one.id, one]),
  );

test("a lineage is told depth first, with what each branch comes to", () => {
  const rows = treeRows(family(), new Set());
  assert.deepEqual(
    rows.map((row) => [row.agent.id, row.level]),
    [
      ["root", 0],
      ["a", 1],
      ["a1", 2],
      ["b", 1],
      ["orphan", 0],
    ],
  );
  const root = rows[0];
  assert.equal(root?.below, 3);
  assert.equal(root?.liveBelow, 2);
  assert.equal(root?.micro_usd, 111);
  assert.equal(root?.cpu_percent, 2);
  assert.deepEqual(rows[2]?.rails, [true]);
});

test("what is folded away is not told", () => {
  assert.deepEqual(
    treeRows(family(), new Set(["a"])).map((row) => row.agent.id),
    ["root", "a", "b", "orphan"],
  );
});

test("a lineage 20,000 deep and one that bites its tail are both survived", () => {
  const deep = new Map(
    Array.from({ length: 20_000 }, (_, at) => [`w${at}`, agent(`w${at}`, at === 0 ? {} : { parent: `w${at - 1}` })]),
  );
  assert.equal(treeRows(deep, new Set()).length, 20_000);
  const ring = new Map(
    [agent("x", { parent: "y" }), agent("y", { parent: "x" }), agent("z", { parent: "z" })].map((one) => [one.id, one]),
  );
  assert.deepEqual(
    treeRows(ring, new Set()).map((row) => row.agent.id),
    ["z"],
  );
});

test("addresses lead where they say, and nonsense leads nowhere", () => {
  assert.equal(parseRoute("").page, "fleet");
  assert.equal(parseRoute("#/alerts?state=open").query.get("state"), "open");
  const one = parseRoute("#/agents/w1_-x?tab=output");
  assert.deepEqual([one.page, one.page === "agent" ? one.id : ""], ["agent", "w1_-x"]);
  for (const bad of ["#/agents/../x", "#/agents/a/b", "#/agents/%3Cscript%3E", "#/nowhere", "#/alerts/1"]) {
    assert.equal(parseRoute(bad).page, "missing", bad);
  }
});
