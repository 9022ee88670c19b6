/** What is worth a look among proposals, and in which tone it is shown. */
import type { ProposalDetail, ProposalRow, ProposalStage } from "../api.ts";

/** Whether somebody may have to do something about it. */
export function isOpen(row: Pick<ProposalRow, "status" | "rollout">): boolean {
  if (row.status === "deployed") return row.rollout !== "done";
  return row.status !== "rejected" && row.status !== "rolled_back";
}

export type Tone = "good" | "warn" | "bad" | "ice" | "plain";

export function statusTone(status: ProposalRow["status"]): Tone {
  switch (status) {
    case "waiting":
      return "warn";
    case "approved":
      return "ice";
    case "deployed":
      return "good";
    case "rejected":
    case "rolled_back":
      return "bad";
    default:
      return "plain";
  }
}

export function riskTone(risk: ProposalRow["risk"]): Tone {
  switch (risk) {
    case "critical":
      return "bad";
    case "high":
      return "warn";
    default:
      return "plain";
  }
}

/** Those that matter first: what waits for people, then the rest, the newest first. */
export function ordered(rows: readonly ProposalRow[]): ProposalRow[] {
  const rank = (row: ProposalRow) => (row.status === "waiting" ? 0 : 1);
  return [...rows].sort((a, b) => rank(a) - rank(b) || b.proposed_at_ms - a.proposed_at_ms);
}

/** How many of the stages passed, failed, and had nothing to ask. */
export function tally(stages: readonly ProposalStage[]): { pass: number; fail: number; not_asked: number } {
  const sums = { pass: 0, fail: 0, not_asked: 0 };
  for (const stage of stages) sums[stage.verdict] += 1;
  return sums;
}

/** The entries of a count, the largest first, each with its share of the largest. */
export function bars(
  counts: Readonly<Record<string, number>>,
): ReadonlyArray<{ name: string; value: number; share: number }> {
  const rows = Object.entries(counts).sort(([a, one], [b, other]) => other - one || a.localeCompare(b));
  const most = Math.max(1, ...rows.map(([, value]) => value));
  return rows.map(([name, value]) => ({ name, value, share: value / most }));
}

/** A share of requests, with the digits that tell two alike apart. */
export function share(value: number): string {
  return `${(value * 100).toFixed(2)} %`;
}

/** Whether anything is known of what it touches. */
export function hasImpact(impact: ProposalDetail["impact"]): boolean {
  return Object.values(impact).some((names) => names.length > 0);
}
