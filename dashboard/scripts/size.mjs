// The dashboard travels inside the binary and is fetched by phones: it stays small.
import { readdirSync, readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";

const MOST_JS_BYTES = 150 * 1024;
const assets = new URL("../dist/assets/", import.meta.url);

let total = 0;
for (const name of readdirSync(assets)) {
  const bytes = gzipSync(readFileSync(new URL(name, assets)), { level: 9 }).length;
  if (name.endsWith(".js")) total += bytes;
  console.log(`${name}: ${(bytes / 1024).toFixed(1)} KiB gzipped`);
}
if (total > MOST_JS_BYTES) {
  console.error(`the scripts have ${total} bytes gzipped, and ${MOST_JS_BYTES} is the most`);
  process.exit(1);
}
