/** Proposals that are made up: one of each kind that a reviewer meets. */
import type { CodeLine, CodeTint, ProposalDetail, ProposalList, ProposalRow, ProposalStage } from "../src/api.ts";
import { HOSTILE_NAMES, HOSTILE_OUTPUT } from "./hostile.ts";

const hex = (digit: string) => digit.repeat(64);

function code(mark: string, ...parts: Array<readonly [CodeTint, string]>): CodeLine {
  return { mark, parts: parts.map(([tint, text]) => ({ tint, text })) };
}

const DIFF: CodeLine[] = [
  code("@", ["plain", "line 1"]),
  code(" ", ["comment", "# Scores words by how well they fit the question."]),
  code("+", ["keyword", "from"], ["plain", " functools "], ["keyword", "import"], ["plain", " lru_cache"]),
  code(" ", ["plain", ""]),
  code("+", ["plain", "@lru_cache(maxsize="], ["number", "1024"], ["plain", ")"]),
  code(" ", ["keyword", "def"], ["plain", " score(word, question):"]),
  code("-", ["plain", "    total = "], ["number", "0"]),
  code("+", ["plain", "    total = weight(word, "], ["text", '"unit"'], ["plain", ")"]),
  code(" ", ["plain", "    "], ["keyword", "for"], ["plain", " letter "], ["keyword", "in"], ["plain", " word:"]),
  code(" ", ["plain", "        total += table[letter]"]),
  code(" ", ["plain", "    "], ["keyword", "return"], ["plain", " total"]),
];

function stage(name: string, verdict: ProposalStage["verdict"], facts: Record<string, string> = {}): ProposalStage {
  return {
    name,
    verdict,
    reasons:
      verdict === "fail"
        ? [
            {
              code: "test_failed",
              stage: name,
              at: "tests/test_agent.py::test_score",
              message: "it passed before and fails now",
              hint: "run the tests of the tree before",
            },
          ]
        : [],
    facts: Object.entries(facts).map(([fact, value]) => ({ name: fact, value })),
    inputs_sha256: hex("a"),
    cached: name === "6-security",
    duration_ms: 120 + name.length * 370,
  };
}

function stages(failed: boolean): ProposalStage[] {
  return [
    stage("0-freeze", "pass", { files: "1" }),
    stage("1-scope", "pass", { entries: "1", lines: "5" }),
    stage("2-static", "pass"),
    stage("3-unit", failed ? "fail" : "pass", { tests: "41", "coverage.changed_lines": "1.00" }),
    stage("4-behaviour", failed ? "not_asked" : "pass", { cases: "12" }),
    stage("5-benchmark", failed ? "not_asked" : "pass", {
      "base.median_ms": "41.20",
      "candidate.median_ms": "6.31",
      ratio: "0.153",
      p: "0.0002",
    }),
    stage("6-security", "pass", { bandit: "0 new findings" }),
    stage("7-footprint", "not_asked"),
  ];
}

function row(id: string, title: string, more: Partial<ProposalRow>, now: number): ProposalRow {
  return {
    id: hex(id),
    project: "/srv/agents/answerer",
    by: "agent:worker-7",
    title,
    status: "waiting",
    risk: "high",
    proposed_at_ms: now - Number.parseInt(id, 16) * 3_400_000,
    ...more,
  };
}

function detail(proposal: ProposalRow, failed: boolean): ProposalDetail {
  const short = proposal.id.slice(0, 12);
  const commands = [
    { what: "look at it in a terminal", command: `belljar evolve review ${short}` },
    ...(proposal.status === "waiting"
      ? [
          { what: "approve", command: `belljar evolve approve ${short} --as NAME --key FILE` },
          {
            what: "reject",
            command: `belljar evolve reject ${short} --as NAME --key FILE --reason tests --message '…'`,
          },
        ]
      : []),
    { what: "comment", command: `belljar evolve comment ${short} --as NAME --key FILE --message '…'` },
  ];
  return {
    proposal,
    description: `${proposal.title}\n\nThe same words come again and again; the answers are kept in memory.`,
    reasons: failed
      ? [{ code: "test_failed", stage: "3-unit", message: "tests/test_agent.py::test_score fails", hint: null }]
      : [],
    files: [
      { path: "agent.py", kind: "changed", added: 3, removed: 1, lines: DIFF, cut: 0 },
      {
        path: "docs/notes.md",
        kind: "added",
        added: 1,
        removed: 0,
        lines: [code("@", ["plain", "line 1"]), code("+", ["plain", "score remembers what it gave."])],
        cut: 0,
      },
    ],
    impact: {
      api_added: [],
      api_removed: [],
      api_changed: ["score"],
      callers: ["cli.py", "serve.py"],
      raised: ["high: body_changed: what score does is another thing"],
    },
    stages: stages(failed),
    recommendation: failed
      ? "reject: 3-unit did not pass"
      : "every stage that was asked passed; look at 1 stage that the project declares nothing for",
    review: {
      state: failed ? "closed" : "waiting",
      words: failed ? [] : [proposal.status === "waiting" ? "0 of 1 have approved" : "approved by ada"],
      approved_by: failed || proposal.status === "waiting" ? [] : ["ada"],
      needed: 1,
      statements: [
        {
          reviewer: "bob",
          verdict: "comment",
          reasons: [],
          text: "What happens when the table changes while it runs?",
          at_ms: proposal.proposed_at_ms + 600_000,
        },
      ],
    },
    digests: { base_tree: hex("1"), candidate_tree: hex("2"), evidence: hex("3"), policy: hex("4") },
    commands,
  };
}

function rolled(one: ProposalDetail, stageName: string, back: string | undefined): ProposalDetail {
  const names = ["5 %", "25 %", "50 %", "done"];
  const at = names.indexOf(stageName);
  one.rollout = {
    stage: stageName,
    steps: names.map((name, n) => ({
      name,
      state: at < 0 ? "undone" : n < at || stageName === "done" ? "passed" : n === at ? "now" : "ahead",
    })),
    ...(back === undefined ? {} : { why_back: back }),
    rounds: 18,
    error_rates: [0.0102, 0.0098],
    is_supervised: true,
    instances: Array.from({ length: 8 }, (_, n) => ({
      name: `worker-${n + 1}`,
      on_candidate: at >= 0 && n < 2,
      tree: hex(at >= 0 && n < 2 ? "2" : "1"),
    })),
  };
  one.proposal.rollout = stageName;
  return one;
}

export function makeProposals(now: number, hostile: boolean): ProposalDetail[] {
  const all = [
    detail(row("1", "score is slow; remember what it gave", {}, now), false),
    detail(
      row("2", "Ask the newer model, and say so in the log", { risk: "critical", by: "operator:ada" }, now),
      false,
    ),
    rolled(
      detail(row("3", "Split the question before it is searched for", { status: "deployed" }, now), false),
      "25 %",
      undefined,
    ),
    detail(row("4", "Sort answers by score", { status: "rejected", risk: "medium" }, now), true),
    rolled(
      detail(row("5", "Answer from the cache first", { status: "rolled_back", risk: "medium" }, now), false),
      "rolled back",
      "worse at 25 %: error_rate",
    ),
  ];
  if (hostile) for (const [n, one] of all.entries()) spoil(one, n);
  return all;
}

/** All an author can write, written by one who wants to do harm. */
function spoil(one: ProposalDetail, n: number): void {
  const name = (more: number) => HOSTILE_NAMES[(n * 3 + more) % HOSTILE_NAMES.length] ?? "";
  one.proposal.title = name(0).slice(0, 256);
  one.proposal.by = `agent:${name(1)}`.slice(0, 256);
  one.proposal.project = name(2).slice(0, 256);
  one.description = `${name(0)}\n${HOSTILE_OUTPUT}`;
  one.reasons = [{ code: name(1), stage: name(2), at: name(3), message: HOSTILE_OUTPUT, hint: name(4) }];
  one.impact = {
    api_added: [name(0)],
    api_removed: [name(1)],
    api_changed: [name(2)],
    callers: [name(3)],
    raised: [HOSTILE_OUTPUT],
  };
  for (const found of one.stages) {
    found.facts = [{ name: name(5), value: name(6) }];
    found.reasons = [{ code: name(2), stage: name(3), message: HOSTILE_OUTPUT }];
  }
  one.files = one.files.map((file, at) => ({
    ...file,
    path: `${name(at)}.py`,
    lines: HOSTILE_OUTPUT.split("\n").map((text) => code("+", ["text", text], ["comment", `# ${name(at + 4)}`])),
  }));
  for (const said of one.review.statements) said.text = HOSTILE_OUTPUT;
  one.review.words = [name(3)];
  if (one.rollout) one.rollout.why_back = name(1);
}

export function proposalList(all: readonly ProposalDetail[]): ProposalList {
  const rows = all.map((one) => one.proposal);
  const by = (key: (one: ProposalRow) => string) => {
    const counts: Record<string, number> = Object.create(null);
    for (const one of rows) counts[key(one)] = (counts[key(one)] ?? 0) + 1;
    return counts;
  };
  const some = rows.length > 0;
  return {
    proposals: rows,
    left_out: 0,
    stats: {
      proposals: rows.length,
      by_status: by((one) => one.status),
      by_risk: by((one) => one.risk),
      by_author: by((one) => one.by),
      refused_for: some ? { test_failed: 3, denied_name: 2, uncovered_lines: 1 } : {},
      rejected_for: some ? { tests: 2, scope: 1 } : {},
      statements: some ? { approve: 3, comment: 4, reject: 2 } : {},
    },
    at_ms: Date.now(),
  };
}
