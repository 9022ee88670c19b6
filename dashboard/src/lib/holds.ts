/** Calls that wait for an operator, in words. */
import type { HoldView } from "../api.ts";

/** Those that can still be answered, the most urgent first. */
export function urgent(holds: readonly HoldView[], now: number): HoldView[] {
  return holds.filter((hold) => hold.deadline_ms > now).sort((a, b) => a.deadline_ms - b.deadline_ms);
}

/** How long somebody has to answer. */
export function timeLeft(hold: HoldView, now: number): string {
  const seconds = Math.max(0, Math.ceil((hold.deadline_ms - now) / 1000));
  return seconds < 120 ? `${seconds} s left` : `${Math.floor(seconds / 60)} min left`;
}

/** Why it is held: a rule asks for it, or the tool is not what it was. */
export function why(code: string): string {
  switch (code) {
    case "hold_tool":
      return "a rule asks for an answer";
    case "hold_new_tool":
      return "the tool is new or changed since it was first seen";
    case "hold_server_request":
      return "the server asks something of the agent";
    default:
      return code;
  }
}
