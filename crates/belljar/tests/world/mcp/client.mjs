// The TypeScript SDK as a client: of a command (its arguments) or of an address (URL). Says what happened as one JSON object.
const modules = process.env.MODULES;
const sdk = `${modules}/@modelcontextprotocol/sdk/dist/esm`;
const { Client } = await import(`${sdk}/client/index.js`);
const { StdioClientTransport } = await import(`${sdk}/client/stdio.js`);
const { StreamableHTTPClientTransport } = await import(`${sdk}/client/streamableHttp.js`);

const prefix = process.env.PREFIX ?? "";
const [command, ...args] = process.argv.slice(2);
const transport = process.env.URL_OF_SERVER
  ? new StreamableHTTPClientTransport(new URL(process.env.URL_OF_SERVER))
  : new StdioClientTransport({ command, args, env: process.env, stderr: "inherit" });
const client = new Client({ name: "test", version: "1" });
await client.connect(transport);
const text = (result) => result.content[0].text;
const said = {};
const { tools } = await client.listTools();
said.lists_get_env = tools.some((tool) => tool.name === `${prefix}get-env`);
said.echo = text(await client.callTool({ name: `${prefix}echo`, arguments: { message: "hello" } }));
try {
  await client.callTool({ name: `${prefix}get-env`, arguments: {} });
  said.denied_code = 0;
} catch (error) {
  said.denied_code = error.code;
}
said.progress = 0;
await client.callTool(
  { name: `${prefix}trigger-long-running-operation`, arguments: { duration: 0.2, steps: 2 } },
  undefined,
  { onprogress: () => said.progress++ },
);
said.after = text(await client.callTool({ name: `${prefix}echo`, arguments: { message: "again" } }));
await client.close();
console.log(JSON.stringify(said));
