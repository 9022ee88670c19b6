import assert from "node:assert/strict";
import { test } from "node:test";
import { backoff, Live, sampleBetween } from "../../src/lib/live.ts";
import { agent, hold, usage } from "./views.ts";

const ids = (live: Live) => [...live.agents.keys()].sort();

test("the first message of a stream is the whole fleet, later ones are changes", () => {
  const live = new Live();
  assert.equal(live.hasFleet, false);
  live.begin();
  live.apply({ is: "agents", data: [agent("a"), agent("b")] });
  live.apply({ is: "agents", data: [agent("c")] });
  assert.deepEqual(ids(live), ["a", "b", "c"]);
  live.begin();
  live.apply({ is: "agents", data: [agent("c")] });
  assert.deepEqual(ids(live), ["c"]);
  assert.deepEqual([...live.traces.keys()], ["c"]);
});

test("an empty fleet is known too", () => {
  const live = new Live();
  live.apply({ is: "agents", data: [] });
  assert.equal(live.hasFleet, true);
});

test("the line of an agent goes on over a new stream", () => {
  const live = new Live();
  for (const cpu_percent of [1, 2]) {
    live.begin();
    live.apply({ is: "agents", data: [agent("a", { usage: usage({ cpu_percent }) })] });
  }
  assert.deepEqual(live.traces.get("a")?.cpu.values(), [1, 2]);
});

test("what is forgotten is gone", () => {
  const live = new Live();
  live.apply({ is: "agents", data: [agent("a"), agent("b")] });
  live.apply({ is: "forgotten", data: ["a", "never"] });
  assert.deepEqual(ids(live), ["b"]);
});

test("an event that is told twice happened once, and the newest comes first", () => {
  const live = new Live();
  const event = (id: number) => ({ id, at_ms: id, kind: "started", severity: "info", text: "" }) as const;
  for (const id of [1, 2, 2, 3]) live.apply({ is: "event", data: event(id) });
  assert.deepEqual(
    live.events.map((one) => one.id),
    [3, 2, 1],
  );
  for (let id = 4; id < 1000; id += 1) live.apply({ is: "event", data: event(id) });
  assert.equal(live.events.length, 500);
});

test("an alert is its last state", () => {
  const live = new Live();
  const alert = {
    id: "a1",
    kind: "AgentCrashed",
    severity: "warning",
    text: "",
    opened_at_ms: 0,
    last_at_ms: 0,
    count: 1,
  } as const;
  live.apply({ is: "alert", data: { ...alert, state: "open" } });
  live.apply({ is: "alert", data: { ...alert, state: "resolved" } });
  assert.deepEqual(
    [...live.alerts.values()].map((one) => one.state),
    ["resolved"],
  );
});

test("a sample is what grew between two views, by the second", () => {
  const before = agent("a", { usage: usage({ sent_bytes: 100, tokens: 5 }) });
  const after = agent("a", { usage: usage({ sent_bytes: 300, tokens: 9, cpu_percent: 7 }) });
  const sample = sampleBetween(before, 1000, after, 3000);
  assert.equal(sample?.send_rate, 100);
  assert.equal(sample?.tokens, 4);
  assert.equal(sample?.cpu_percent, 7);
});

test("counters that began again are no negative rate, and no time is no sample", () => {
  const before = agent("a", { usage: usage({ received_bytes: 500 }) });
  assert.equal(sampleBetween(before, 0, agent("a"), 1000)?.receive_rate, 0);
  assert.equal(sampleBetween(before, 1000, agent("a"), 1000), undefined);
  assert.equal(sampleBetween(before, 0, agent("b"), 1000), undefined);
});

test("pauses between attempts grow, are spread, and have an end", () => {
  assert.deepEqual(
    [0, 1, 2].map((attempt) => backoff(attempt, 1)),
    [500, 1000, 2000],
  );
  assert.equal(backoff(3, 0), 2000);
  assert.equal(backoff(50, 1), 30_000);
});

test("held calls are unknown until told, and each message is all of them", () => {
  const live = new Live();
  const told = () => live.holds?.map((one) => one.id);
  assert.equal(told(), undefined);
  live.apply({ is: "holds", data: [hold("a"), hold("b")] });
  live.apply({ is: "holds", data: [hold("b")] });
  assert.deepEqual(told(), ["b"]);
});
