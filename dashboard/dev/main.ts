/**
 * The dashboard with a made-up fleet, for whoever changes it: `npm run dev`, or `npm run dev -- --agents 1000 --hostile`.
 * Log in with dev-viewer, dev-operator or dev-admin.
 */
import { parseArgs } from "node:util";
import { createServer } from "vite";
import { DevServer, TOKENS } from "./server.ts";

const { values } = parseArgs({
  options: {
    agents: { type: "string", default: "24" },
    hostile: { type: "boolean", default: false },
    port: { type: "string", default: "5173" },
  },
});
const backend = new DevServer({ agents: Number(values.agents), hostile: values.hostile });
await backend.listen(0);
const vite = await createServer({ server: { port: Number(values.port), proxy: { "/v1": backend.url } } });
await vite.listen();
vite.printUrls();
console.log(`  Tokens: ${Object.values(TOKENS).join(", ")}`);
