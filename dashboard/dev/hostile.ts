/** What an agent that wants to do harm would call itself and write. */

const ESC = "\u001b";

export const HOSTILE_NAMES: readonly string[] = [
  '<img src=x onerror="window.pwned=1">',
  "<script>window.pwned=1</script>",
  '"><svg onload=window.pwned=1>',
  "javascript:window.pwned=1",
  "{{constructor.constructor('window.pwned=1')()}}",
  "safe\u202egnp.exe",
  "admin\u200b\u200d\u2066hidden",
  `${ESC}[31mred${ESC}[0m${ESC}]0;title\u0007`,
  "x".repeat(10_000),
  "\u0007\u0000\r\nsecond line",
  "z\u0300\u0301\u0302\u0303\u0304\u0305\u0306\u0307\u0308\u0309\u030a\u030b\u030c\u030d\u030e\u030f\u0310\u0311\u0312a\u0335l\u0336g\u0337o\u0338".repeat(
    4,
  ),
  "__proto__",
  "' style='position:fixed;inset:0;background:red",
  "هذا وكيل שלום",
];

export const HOSTILE_OUTPUT = [
  '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>',
  `${ESC}[2J${ESC}[H${ESC}[31mcleared?${ESC}[0m`,
  `${ESC}]8;;javascript:window.pwned=1${ESC}\\click${ESC}]8;;${ESC}\\`,
  "if access_level != \u202e\u2066// check\u2069 \u2066user: pass",
  "progress 10%\rprogress 50%\rprogress 100%",
  "y".repeat(10_000),
  "\u0000\u0001\u0008\u007f",
  "</pre></body></html>",
  "",
].join("\n");
