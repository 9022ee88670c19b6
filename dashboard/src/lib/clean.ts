/**
 * What agents wrote, made fit to be looked at. It is only ever put into text nodes, so it can't become markup; this is about
 * text that lies to the eye: escape sequences, characters that turn the reading direction round, and characters nobody sees.
 */

// Colours and other commands to a terminal: CSI, OSC with its end, and the short ones. None goes past its line, or an agent could
// hide what it wrote by beginning one.
const TERMINAL =
  /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b\n]*(?:\u0007|\u001b\\)?|[PX^_][^\u001b\n]*(?:\u001b\\)?|[ -/]*[0-OQ-WYZ`-~])/g;

// Controls (but tab and newline), the bidirectional ones, zero-width and other invisible characters, and tag characters.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

/** A text of one line: what is hidden is named, line ends are blanks, and what is too long is cut. */
export function line(text: string, most = 300): string {
  const cut = text.length > most ? `${text.slice(0, most)}…` : text;
  return visible(cut.replace(/[\n\r\t]+/g, " "));
}

/** Output of an agent: commands to a terminal are left out, a rewritten line is its last state, what is hidden is named. */
export function output(text: string): string {
  const plain = text.replace(TERMINAL, "").replaceAll("\r\n", "\n");
  return visible(plain.replace(/[^\n\r]*\r(?=[^\n\r])/g, ""));
}

/** Names each hidden character: a right-to-left override becomes `‹U+202E›`. */
export function visible(text: string): string {
  return text.replace(HIDDEN, (hidden) => {
    const code = hidden.codePointAt(0) ?? 0;
    return `‹U+${code.toString(16).toUpperCase().padStart(4, "0")}›`;
  });
}

/** Whether somebody may give this as a reason: one line, not empty, at most 512 bytes, nothing hidden in it. */
export function reasonProblem(reason: string): string | undefined {
  const trimmed = reason.trim();
  if (trimmed === "") return "Say why: the reason goes to the ledger.";
  const length = new TextEncoder().encode(trimmed).length;
  if (length > 512) return `It has ${length} bytes, and 512 is the most.`;
  if (visible(trimmed) !== trimmed || /[\n\t]/.test(trimmed)) return "It holds a character that can't be seen.";
  return undefined;
}
