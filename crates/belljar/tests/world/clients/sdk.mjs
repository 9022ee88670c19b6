// Calls models with OpenAI's own library for Node, unmodified, with the key that the environment holds.
// usage: sdk.mjs    prints the tokens of an answer, of a streamed answer, and of a response

import { createRequire } from 'node:module';

const require = createRequire('/mnt/clients/node/');
const OpenAI = require('openai');
const client = new OpenAI({ maxRetries: 0 });
const model = 'gpt-4o-mini';
const messages = [{ role: 'user', content: 'say-5' }];

const answer = await client.chat.completions.create({ model, messages, max_tokens: 50 });
console.log('chat', answer.usage.completion_tokens);

let words = 0;
for await (const chunk of await client.chat.completions.create({ model, messages, max_tokens: 50, stream: true })) {
    if (chunk.choices.length === 0) throw new Error('a chunk that was not asked for');
    words += chunk.choices[0].delta.content ? 1 : 0;
}
console.log('stream', words);

for await (const event of await client.responses.create({ model, input: 'say-6', stream: true })) {
    if (event.type === 'response.completed') console.log('response', event.response.usage.output_tokens);
}
