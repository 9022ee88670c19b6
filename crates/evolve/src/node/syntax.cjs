// How far changed files are the same to Node's own parser.
'use strict';

const fs = require('node:fs');
const { stripTypeScriptTypes } = require('node:module');
const acorn = require('internal/deps/acorn/acorn/dist/acorn');

const LOGS = new Set(['log', 'logger', 'logging', 'LOG', 'LOGGER', 'console']);
const SAYS = new Set(['debug', 'info', 'warning', 'warn', 'error', 'exception', 'log', 'critical']);

function isPlain(node) {
  return node.type === 'Literal' || node.type === 'Identifier' || (node.type === 'TemplateLiteral' && node.expressions.length === 0);
}

// A statement that only says something.
function isMessage(node) {
  const call = node.type === 'ExpressionStatement' && node.expression;
  if (!call || call.type !== 'CallExpression' || call.optional || !call.arguments.every(isPlain)) return false;
  const { callee } = call;
  if (callee.type === 'Identifier') return callee.name === 'print';
  const { object, property } = callee;
  return callee.type === 'MemberExpression' && !callee.computed && object.type === 'Identifier'
    && LOGS.has(object.name) && SAYS.has(property.name);
}

function plain(node, silent) {
  if (Array.isArray(node)) {
    return node.filter((item) => !(silent && item && item.type && isMessage(item))).map((item) => plain(item, silent));
  }
  if (typeof node === 'bigint') return `${node}n`;
  if (node === null || typeof node !== 'object' || node instanceof RegExp) return node === undefined ? null : typeof node === 'object' && node ? String(node) : node;
  const made = {};
  for (const key of Object.keys(node)) {
    if (key !== 'start' && key !== 'end') made[key] = plain(node[key], silent);
  }
  return made;
}

function text(source, sourceType, silent) {
  const options = { ecmaVersion: 'latest', sourceType, allowHashBang: true, allowReturnOutsideFunction: sourceType === 'script' };
  return JSON.stringify(plain(acorn.parse(source, options), silent));
}

function parsed(source, sourceType, silent) {
  try {
    return text(source, sourceType, silent);
  } catch (error) {
    if (error instanceof SyntaxError) return null;
    throw error;
  }
}

function modes(name) {
  if (/\.m[jt]s$/.test(name)) return ['module'];
  if (/\.c[jt]s$/.test(name)) return ['script'];
  return ['script', 'module'];
}

// Code that a file can be read as in more than one way must be the same in each.
function compare(name, before, after) {
  let [old, now] = [before, after];
  if (/\.[cm]?ts$/.test(name)) {
    if (!stripTypeScriptTypes) return 'unknown';
    [old, now] = [before, after].map((source) => stripTypeScriptTypes(source));
  } else if (!/\.[cm]?js$/.test(name)) {
    return 'unknown';
  }
  let read = 0;
  let worst = 'comments';
  for (const mode of modes(name)) {
    const [one, two] = [parsed(old, mode, false), parsed(now, mode, false)];
    if (one === null && two === null) continue;
    read += 1;
    if (one === two) continue;
    if (one === null || two === null || parsed(old, mode, true) !== parsed(now, mode, true)) return 'code';
    worst = 'messages';
  }
  return read > 0 ? worst : 'unknown';
}

const job = JSON.parse(fs.readFileSync('/belljar/evolve/job.json', 'utf8'));
const report = {};
for (const [name, before] of Object.entries(job.changed)) {
  try {
    report[name] = compare(name, before, fs.readFileSync(`${job.root}/${name}`, 'utf8'));
  } catch {
    report[name] = 'unknown';
  }
}
process.stdout.write(JSON.stringify(report));
