import assert from "node:assert/strict";
import { test } from "node:test";
import { HOSTILE_NAMES, HOSTILE_OUTPUT } from "../../dev/hostile.ts";
import { line, output, reasonProblem } from "../../src/lib/clean.ts";

const DECEIVING = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069]/;

test("no hostile name keeps a character that deceives the eye, and none is long", () => {
  for (const name of HOSTILE_NAMES) {
    const shown = line(name, 120);
    assert.doesNotMatch(shown, DECEIVING);
    assert.doesNotMatch(shown, /[\n\t]/);
    assert.ok(shown.length < 1200, `${shown.length} characters`);
  }
});

test("markup stays as it was written: it is text, and evidence", () => {
  assert.equal(line("<img src=x onerror=alert(1)>"), "<img src=x onerror=alert(1)>");
});

test("a character that turns the direction round is named", () => {
  assert.equal(line("safe\u202egnp.exe"), "safe‹U+202E›gnp.exe");
});

test("a text that is too long is cut and says so", () => {
  assert.equal(line("abcdef", 3), "abc…");
});

test("output loses commands to a terminal and keeps lines and tabs", () => {
  assert.equal(output("\u001b[31mred\u001b[0m\tplain\n\u001b]0;title\u0007next"), "red\tplain\nnext");
  assert.equal(output("\u001b]8;;javascript:alert(1)\u001b\\click\u001b]8;;\u001b\\"), "click");
  assert.doesNotMatch(output(HOSTILE_OUTPUT), DECEIVING);
});

test("a line that is written over is its last state", () => {
  assert.equal(output("10%\r50%\r100%\ndone\r\nend"), "100%\ndone\nend");
});

test("escape sequences that never end don't swallow what follows the line", () => {
  assert.equal(output("\u001b[31"), "‹U+001B›[31");
  assert.equal(output("\u001b]0;hide\nthis"), "\nthis");
  assert.equal(output("\u001bPhide\nthis"), "\nthis");
});

test("a reason is one visible line of at most 512 bytes", () => {
  assert.equal(reasonProblem("it misbehaves"), undefined);
  assert.match(reasonProblem("   ") ?? "", /Say why/);
  assert.match(reasonProblem("ä".repeat(257)) ?? "", /514 bytes/);
  assert.match(reasonProblem("a\u202eb") ?? "", /can't be seen/);
});
