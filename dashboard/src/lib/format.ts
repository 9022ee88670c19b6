/** Numbers and times for people: short, of steady width, the same everywhere. */

const UNITS = ["B", "KB", "MB", "GB", "TB", "PB"] as const;

/** Bytes in steps of 1,024, with three digits that matter: `0 B`, `1.50 MB`, `12.3 GB`. */
export function bytes(value: number): string {
  let left = Math.max(0, value);
  let unit = 0;
  while (left >= 1024 && unit < UNITS.length - 1) {
    left /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(left) : digits(left)} ${UNITS[unit] ?? "B"}`;
}

/** Bytes a second. */
export function rate(value: number): string {
  return `${bytes(value)}/s`;
}

/** Hundredths of one core: `0 %`, `3.2 %`, `180 %`. */
export function percent(value: number): string {
  const shown = value < 10 ? value.toFixed(1) : Math.round(value).toString();
  return `${shown === "0.0" ? "0" : shown} %`;
}

/** A count, shortened past ten thousand: `9,999`, `12.3 k`, `4.50 M`. */
export function count(value: number): string {
  if (value < 10_000) return whole(value);
  if (value < 1e6) return `${digits(value / 1e3)} k`;
  if (value < 1e9) return `${digits(value / 1e6)} M`;
  return `${digits(value / 1e9)} G`;
}

/** A count in full, with separators. */
export function whole(value: number): string {
  return Math.round(value).toLocaleString("en-US");
}

/** Millionths of a US dollar: `$0`, `$0.0042`, `$1.25`, `$1,204`. */
export function usd(micro: number): string {
  const dollars = micro / 1e6;
  if (dollars === 0) return "$0";
  if (dollars < 0.1) return `$${dollars.toFixed(4)}`;
  if (dollars < 1000) return `$${dollars.toFixed(2)}`;
  return `$${whole(dollars)}`;
}

const STEPS: ReadonlyArray<readonly [number, string]> = [
  [86_400_000, "d"],
  [3_600_000, "h"],
  [60_000, "m"],
  [1000, "s"],
];

/** A stretch of time in its two largest units: `4 s`, `3 m 20 s`, `2 d 4 h`. */
export function duration(ms: number): string {
  let left = Math.max(0, ms);
  const parts: string[] = [];
  for (const [size, unit] of STEPS) {
    const many = Math.floor(left / size);
    if (many > 0) parts.push(`${many} ${unit}`);
    left -= many * size;
    // A unit below a missing one would mislead: `2 d 5 s`.
    if (parts.length === 2 || (parts.length === 1 && many === 0)) break;
  }
  return parts.length === 0 ? "0 s" : parts.join(" ");
}

/** CPU time or a short wait, with its fraction: `312 µs`, `42 ms`, `1.25 s`, `3 m 20 s`. */
export function spell(us: number): string {
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 1e6) return `${digits(us / 1000)} ms`;
  if (us < 60e6) return `${digits(us / 1e6)} s`;
  return duration(us / 1000);
}

/** How long ago: `now`, `4 s ago`, `2 h 5 m ago`. */
export function ago(at_ms: number, now_ms: number): string {
  const passed = now_ms - at_ms;
  return passed < 1000 ? "now" : `${duration(passed)} ago`;
}

/** The time of day on the reader's clock, to the second: `14:03:09`. */
export function clock(at_ms: number): string {
  const at = new Date(at_ms);
  return [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":");
}

/** The day on the reader's calendar: `2026-03-01`. */
export function day(at_ms: number): string {
  const at = new Date(at_ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

/** Day and time on the reader's clock. */
export function moment(at_ms: number): string {
  return `${day(at_ms)} ${clock(at_ms)}`;
}

/** A stable word as people write it: `crash_loop` is `crash loop`, `HighResourceUsage` is `High resource usage`. */
export function words(code: string): string {
  const spaced = code.replaceAll("_", " ").replace(/(?<=[a-z])([A-Z])/g, (letter) => ` ${letter.toLowerCase()}`);
  return spaced;
}

/** One thing or many: `1 agent`, `20 agents`. */
export function many(value: number, one: string, several = `${one}s`): string {
  return `${whole(value)} ${value === 1 ? one : several}`;
}

function digits(value: number): string {
  if (value < 10) return value.toFixed(2);
  if (value < 100) return value.toFixed(1);
  return value.toFixed(0);
}

function two(value: number): string {
  return value.toString().padStart(2, "0");
}
