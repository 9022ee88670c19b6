import assert from "node:assert/strict";
import { test } from "node:test";
import * as format from "../../src/lib/format.ts";

function check<Input>(show: (input: Input) => string, cases: ReadonlyArray<readonly [Input, string]>): void {
  for (const [input, expected] of cases) assert.equal(show(input), expected);
}

test("bytes keep three digits that matter", () => {
  check(format.bytes, [
    [0, "0 B"],
    [-5, "0 B"],
    [1023, "1023 B"],
    [1024, "1.00 KB"],
    [1536 * 1024, "1.50 MB"],
    [999 * 1024 * 1024, "999 MB"],
    [2 ** 53, "8.00 PB"],
  ]);
});

test("percentages are short, and nothing is nothing", () => {
  check(format.percent, [
    [0, "0 %"],
    [0.04, "0 %"],
    [3.24, "3.2 %"],
    [99.6, "100 %"],
    [1234.4, "1234 %"],
  ]);
});

test("money shows cents, and fractions of them while there is less than ten", () => {
  check(format.usd, [
    [0, "$0"],
    [4200, "$0.0042"],
    [1_250_000, "$1.25"],
    [1_204_400_000, "$1,204"],
  ]);
});

test("a stretch of time has its two largest units and never skips one", () => {
  check(format.duration, [
    [0, "0 s"],
    [-1, "0 s"],
    [999, "0 s"],
    [4000, "4 s"],
    [200_000, "3 m 20 s"],
    [3_600_000 + 5000, "1 h"],
    [2 * 86_400_000 + 4 * 3_600_000 + 61_000, "2 d 4 h"],
  ]);
});

test("short waits show their fraction", () => {
  check(format.spell, [
    [312, "312 µs"],
    [42_000, "42.0 ms"],
    [1_250_000, "1.25 s"],
    [200e6, "3 m 20 s"],
  ]);
});

test("what is in the future, by a clock that is ahead, is now", () => {
  assert.equal(format.ago(2000, 1000), "now");
  assert.equal(format.ago(1000, 5000), "4 s ago");
});

test("counts are shortened past ten thousand", () => {
  check(format.count, [
    [9999, "9,999"],
    [12_345, "12.3 k"],
    [4_500_000, "4.50 M"],
    [7.2e9, "7.20 G"],
  ]);
});

test("stable words become words", () => {
  check(format.words, [
    ["crash_loop", "crash loop"],
    ["HighResourceUsage", "High resource usage"],
    ["running", "running"],
  ]);
});
