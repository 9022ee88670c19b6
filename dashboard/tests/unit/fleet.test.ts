import assert from "node:assert/strict";
import { test } from "node:test";
import { WORDS } from "../../src/api.ts";
import { budgetShares, isLive, part, select, sort, totals } from "../../src/lib/fleet.ts";
import { agent, usage } from "./views.ts";

const fleet = [
  agent("w3", { name: "Scraper", usage: usage({ cpu_percent: 5, micro_usd: 10 }) }),
  agent("w1", { name: "triage", phase: "ended", usage: usage({ cpu_percent: 0, micro_usd: 90 }) }),
  agent("w2", { name: "planner", phase: "crash_loop", open_alerts: 2, command: "node plan.mjs" }),
];
const ids = (agents: ReturnType<typeof select>) => agents.map((one) => one.id);
const everything = { search: "", phase: "all", alerted: false } as const;

test("every word of a search has to be somewhere, whatever its case", () => {
  assert.deepEqual(ids(select(fleet, { ...everything, search: "SCRA w3" })), ["w3"]);
  assert.deepEqual(ids(select(fleet, { ...everything, search: "plan mjs" })), ["w2"]);
  assert.deepEqual(ids(select(fleet, { ...everything, search: "plan nothing" })), []);
});

test("what is current leaves out what ended, but not what loops", () => {
  assert.deepEqual(ids(select(fleet, { ...everything, phase: "live" })), ["w3", "w2"]);
  assert.deepEqual(ids(select(fleet, { ...everything, phase: "ended" })), ["w1"]);
  assert.deepEqual(ids(select(fleet, { ...everything, alerted: true })), ["w2"]);
});

test("each order is an order, and equals keep the order of their ids", () => {
  assert.deepEqual(ids(sort([...fleet], { key: "spent", down: true })), ["w1", "w3", "w2"]);
  assert.deepEqual(ids(sort([...fleet], { key: "phase", down: false })), ["w2", "w3", "w1"]);
  assert.deepEqual(ids(sort([...fleet], { key: "memory", down: true })), ["w1", "w2", "w3"]);
  assert.deepEqual(ids(sort([...fleet], { key: "memory", down: false })), ["w1", "w2", "w3"]);
});

test("totals count what lives, and every cent that was spent", () => {
  const sum = totals(fleet);
  assert.equal(sum.agents, 3);
  assert.equal(sum.live, 1);
  assert.equal(sum.micro_usd, 100);
  assert.equal(sum.phases.crash_loop, 1);
});

test("whether an agent lives is said for every phase", () => {
  const live = WORDS.AgentPhase.filter((phase) => isLive(agent("w", { phase })));
  assert.deepEqual(live, ["starting", "running", "freezing", "quarantined", "stopping", "waiting"]);
});

test("the tightest budget comes first, and a budget of nothing is spent", () => {
  const one = agent("w", {
    usage: usage({ tokens: 50, micro_usd: 10 }),
    budget: { granted: { tokens: 100, micro_usd: 1000, replicas: 0 }, own: {}, reserved: {}, spent: {}, available: {} },
  });
  const shares = budgetShares(one);
  assert.deepEqual(
    shares.map((share) => share.label),
    ["Replicas", "Tokens", "USD"],
  );
  assert.deepEqual(shares.map(part), [1, 0.5, 0.01]);
  assert.deepEqual(budgetShares(agent("w")), []);
});
