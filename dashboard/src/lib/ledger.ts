/** Entries of the ledger as people read them: when, what, who, and the rest in words. */
import type { LedgerEntry } from "../api.ts";

export interface EntryLine {
  readonly index: number;
  /** Nothing where the entry does not say. */
  readonly at_ms: number | undefined;
  readonly kind: string;
  /** The agent it is about, by its id. */
  readonly who: string | undefined;
  /** Its other facts, those that say most first. */
  readonly what: string;
}

/** What each agent uses is told every few seconds: of all entries the most, and of least interest. */
export const NOISE: ReadonlySet<string> = new Set(["usage_reported"]);

const FIRST = [
  "act",
  "name",
  "program",
  "reason",
  "why",
  "detail",
  "code",
  "state",
  "exit_code",
  "signal",
  "killed_by",
];
const WHO = ["worker", "run", "agent"];

type Fields = Record<string, unknown>;

const fieldsOf = (value: unknown): Fields =>
  typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Fields) : {};

export function lineOf(entry: LedgerEntry): EntryLine {
  const all = fieldsOf(entry.entry);
  const what = fieldsOf(all.what);
  const wall = fieldsOf(all.at).wall_ms;
  const who = WHO.map((name) => what[name]).find((value) => typeof value === "string");
  const rest = Object.entries(what)
    .filter(([name, value]) => name !== "kind" && value !== who && value !== null && value !== undefined)
    .sort(([a], [b]) => rank(a) - rank(b));
  return {
    index: entry.index,
    at_ms: typeof wall === "number" ? wall : undefined,
    kind: typeof what.kind === "string" ? what.kind : "not_understood",
    who: who as string | undefined,
    what: rest.map(([name, value]) => `${name.replaceAll("_", " ")}: ${shown(value)}`).join(", "),
  };
}

function rank(name: string): number {
  const at = FIRST.indexOf(name);
  return at === -1 ? FIRST.length : at;
}

function shown(value: unknown): string {
  if (typeof value !== "string") return JSON.stringify(value);
  // Enough of a digest to tell two apart.
  return /^[0-9a-f]{64}$/.test(value) ? `${value.slice(0, 12)}…` : value;
}
