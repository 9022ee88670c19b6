// The TypeScript SDK as a client whose calls become tasks of two servers at one address. Says what happened as one JSON object.
const sdk = `${process.env.MODULES}/@modelcontextprotocol/sdk/dist/esm`;
const { Client } = await import(`${sdk}/client/index.js`);
const { StreamableHTTPClientTransport } = await import(`${sdk}/client/streamableHttp.js`);
const { ElicitRequestSchema } = await import(`${sdk}/types.js`);

const url = new URL(process.env.URL_OF_SERVER);
const connect = async () => {
  const client = new Client({ name: "test", version: "1" }, { capabilities: { elicitation: { form: {} } } });
  client.setRequestHandler(ElicitRequestSchema, async (request) => {
    said.asked.push(request.params._meta["io.modelcontextprotocol/related-task"].taskId);
    return { action: "accept", content: { interpretation: "technical" } };
  });
  await client.connect(new StreamableHTTPClientTransport(url));
  return client;
};
const said = { asked: [], made: {}, results: {} };
const client = await connect();
const tasks = client.experimental.tasks;
said.capability = client.getServerCapabilities().tasks;
await client.listTools();
const research = async (server, ambiguous) => {
  const call = { name: `${server}__simulate-research-query`, arguments: { topic: server, ambiguous } };
  for await (const message of tasks.callToolStream(call)) {
    if (message.type === "taskCreated") said.made[server] = message.task.taskId;
    if (message.type === "result") said.results[server] = message.result.content[0].text.split("\n")[0];
    if (message.type === "error") said.results[server] = String(message.error);
  }
};
const running = [research("one", true), research("two", false)];
// One more, which is not waited for.
const third = tasks.callToolStream({ name: "two__simulate-research-query", arguments: { topic: "three" } });
const given = (await third.next()).value.task.taskId;
said.cancelled = (await tasks.cancelTask(given)).status;
said.after = (await tasks.getTask(given)).status;
said.given = given;
await Promise.all(running);
said.listed = (await tasks.listTasks()).tasks.map((task) => task.taskId);
// A session of its own has none of them, nor has a server what another made.
const code = async (asked) => asked.then(() => 0, (error) => error.code);
const other = await connect();
said.other = (await other.experimental.tasks.listTasks()).tasks;
said.codes = await Promise.all([
  code(other.experimental.tasks.getTask(said.made.one)),
  code(other.experimental.tasks.getTaskResult(said.made.one)),
  code(other.experimental.tasks.cancelTask(said.made.two)),
  code(tasks.getTask(said.made.one.replace("one__", "two__"))),
  code(tasks.getTask(said.made.one.replace("one__", ""))),
]);
await other.close();
await client.close();
console.log(JSON.stringify(said));
