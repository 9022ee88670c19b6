// Runs one test file of a project with Node's own test runner, and says how each test went.
//
// What is said begins with a word that is drawn here, said first and known to nobody else in this process: other lines are not heard.
// Tests that the draw makes fail do: their first comparison is with another value of the same kind, or they throw at their end. The
// draw comes through a pipe that is empty once it is read, so nobody in here can tell which run of a test counts.
'use strict';

const assert = require('node:assert');
const crypto = require('node:crypto');
const fs = require('node:fs');
const inspector = require('node:inspector');
const module_ = require('node:module');
const path = require('node:path');
const url = require('node:url');
const { AsyncLocalStorage } = require('node:async_hooks');
const testing = require('node:test');

const job = JSON.parse(fs.readFileSync(0, 'utf8'));
const word = crypto.randomBytes(16).toString('hex');

// Whatever the project puts in the place of these later is not what is used here.
const write = fs.writeSync;
const stringify = JSON.stringify;
const call = Function.prototype.call;
const bound = (method) => call.bind(method);
const concat = bound(Array.prototype.concat);
const slice = bound(Array.prototype.slice);
const join = bound(Array.prototype.join);
const isArray = Array.isArray;
const assign = Object.assign;
const number = crypto.randomInt;
const store = new AsyncLocalStorage();
const inside = store.run.bind(store);
const here = store.getStore.bind(store);
const exit = process.on.bind(process);
const known = Object.create(null);

const drawn = Object.create(null);
/** Whether the tests of this name must fail in this run. */
function isDue(id) {
  if (!(id in drawn)) {
    const digest = sha256(job.secret + id);
    drawn[id] = (digest & 1) === job.turn;
  }
  return drawn[id];
}
const hash = crypto.createHash;
const update = bound(crypto.Hash.prototype.update);
const digest = bound(crypto.Hash.prototype.digest);
function sha256(text) {
  return digest(update(hash('sha256'), text), null)[0];
}

function tell(what) {
  write(1, `${word} ${stringify(what)}\n`);
}

/** Something of the same kind that is not the same. */
function other(value) {
  const extra = number(1, 1 << 30);
  switch (typeof value) {
    case 'boolean':
      return !value;
    case 'number':
      return value === value ? value + extra : extra;
    case 'bigint':
      return value + 1n;
    case 'string':
      return `${value}${extra}`;
    case 'object':
      if (isArray(value)) return concat(value, [extra]);
      if (value !== null && !(value instanceof Error) && !(value instanceof RegExp)) {
        return assign({}, value, { [`k${extra}`]: extra });
      }
      return extra;
    default:
      return extra;
  }
}

/** The first comparison of a test that must fail does not hold; where it does, the test goes on, and passes what it must not. */
function spoiled(original) {
  return function compare(actual, expected, message) {
    const now = here();
    if (now && now.due && !now.done) {
      now.done = true;
      original(actual, other(expected));
      return undefined;
    }
    return original(actual, expected, message);
  };
}

function shut(object) {
  for (const name of Object.getOwnPropertyNames(object)) {
    const property = Object.getOwnPropertyDescriptor(object, name);
    if (property.configurable && 'value' in property) {
      Object.defineProperty(object, name, { ...property, writable: false, configurable: false });
    }
  }
  Object.preventExtensions(object);
}

const COMPARISONS = ['equal', 'strictEqual', 'deepEqual', 'deepStrictEqual'];
for (const kind of [assert, assert.strict]) {
  for (const name of COMPARISONS) kind[name] = spoiled(kind[name]);
}

/** The names of suites and tests around a place, and its own. */
function named(around, name) {
  const full = around ? `${around} > ${name}` : name;
  known[full] = (known[full] || 0) + 1;
  return known[full] === 1 ? full : `${full} #${known[full]}`;
}

function parts(given, kind) {
  const rest = slice(given);
  const name = typeof rest[0] === 'string' ? rest.shift() : undefined;
  const options = rest[0] !== null && typeof rest[0] === 'object' ? rest.shift() : {};
  const body = typeof rest[0] === 'function' ? rest[0] : undefined;
  const asked = kind === 'plain' ? options : { ...options, [kind]: options[kind] || true };
  return { name: name || (body && body.name) || 'anonymous', options: asked, body };
}

function test(original, kind) {
  return function declare() {
    const { name, options, body } = parts(arguments, kind);
    const around = here();
    const id = named(around && around.id, name);
    tell({ collected: id });
    // What is skipped, or may fail, tells nothing.
    if (!body || options.skip || options.todo || (around && around.skipped)) {
      tell({ id, outcome: 'skipped', due: false });
      return original(name, options, body);
    }
    // Tests inside a test share its lot: they do not run when it fails before them.
    const root = around && around.root ? around.root : id;
    const begin = (t) => {
      const now = { id, root, due: isDue(root), done: false, skipped: false, told: false };
      for (const way of ['skip', 'todo']) {
        const own = t && t[way];
        if (typeof own === 'function') {
          t[way] = function mark(message) {
            now.skipped = true;
            return call.call(own, t, message);
          };
        }
      }
      if (t && typeof t.test === 'function') t.test = test(t.test.bind(t), 'plain');
      return now;
    };
    const end = (now, failure) => {
      if (now.told) return undefined;
      now.told = true;
      let why = failure;
      if (!why && !now.skipped && now.due && !now.done) why = { error: new Error('this test must fail') };
      tell({ id, outcome: why ? 'failed' : now.skipped ? 'skipped' : 'passed', due: now.due });
      return why;
    };
    if (body.length > 1) {
      return original(name, options, function run(t, done) {
        const now = begin(t);
        const finish = (error) => {
          const why = end(now, error ? { error } : undefined);
          done(why && why.error);
        };
        return inside(now, () => body.call(this, t, finish));
      });
    }
    return original(name, options, async function run(t) {
      const now = begin(t);
      let failure;
      try {
        await inside(now, () => body.call(this, t));
      } catch (error) {
        failure = { error };
      }
      const why = end(now, failure);
      if (why) throw why.error;
    });
  };
}

function suite(original, kind) {
  return function declare() {
    const { name, options, body } = parts(arguments, kind);
    const around = here();
    const full = around && around.id ? `${around.id} > ${name}` : name;
    const skipped = Boolean(options.skip || options.todo || (around && around.skipped));
    return original(name, options, body && function run(context) {
      return inside({ id: full, skipped }, () => body.call(this, context));
    });
  };
}

/** Puts what declares tests in place of Node's, wherever projects find it. */
function dress(make, original) {
  const made = make(original, 'plain');
  for (const name of Object.getOwnPropertyNames(original)) {
    if (['length', 'name', 'prototype', 'arguments', 'caller'].includes(name)) continue;
    made[name] = ['skip', 'todo', 'only'].includes(name) ? make(original[name], name) : original[name];
  }
  return made;
}

const declare = dress(test, testing);
const it = dress(test, testing.it || testing);
const describe = dress(suite, testing.describe);
Object.assign(declare, { test: declare, it, describe, suite: describe, default: declare });

const load = module_._load;
module_._load = function provide(request) {
  return request === 'node:test' ? declare : load.apply(this, arguments);
};
// `import test from 'node:test'` does not ask the function above: it is led to a module that does.
const MODULE = `import { createRequire } from 'node:module';
const all = createRequire('/belljar/evolve/runner.cjs')('node:test');
export default all;
export const { test, it, describe, suite, before, after, beforeEach, afterEach, mock, run, skip, todo, only } = all;`;
const HOOKS = `const at = 'data:text/javascript,' + encodeURIComponent(${stringify(MODULE)});
export async function resolve(name, context, next) {
  return name === 'node:test' ? { url: at, format: 'module', shortCircuit: true } : next(name, context);
}`;
module_.register(`data:text/javascript,${encodeURIComponent(HOOKS)}`);
const closed = () => {
  throw new Error('what loads modules is not to be changed');
};
for (const name of ['register', 'registerHooks']) module_[name] = closed;
shut(module_);
Object.assign(testing, { test: declare, it, describe, suite: describe });
module_.syncBuiltinESMExports();
for (const object of [assert, assert.strict, declare, it, describe, testing]) shut(object);

let session;
if (job.changed.length > 0) {
  session = new inspector.Session();
  session.connect();
  session.post('Profiler.enable');
  session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: true });
}
const places = Object.create(null);
for (const name of job.changed) places[url.pathToFileURL(path.join(job.root, name)).href] = name;

write(1, `${word}\n`);
exit('exit', (code) => {
  if (session) {
    session.post('Profiler.takePreciseCoverage', (_, taken) => {
      const seen = {};
      for (const script of (taken && taken.result) || []) {
        const name = places[script.url];
        if (name === undefined) continue;
        seen[name] = [];
        for (const used of script.functions) {
          for (const range of used.ranges) seen[name].push([range.startOffset, range.endOffset, range.count]);
        }
      }
      tell({ seen });
    });
  }
  tell({ end: code });
});
// Reports of Node's own, and what the project prints, go where people may read them.
process.stdout.write = process.stderr.write.bind(process.stderr);
process.argv = [process.argv[0], path.join(job.root, job.file)];
import(url.pathToFileURL(process.argv[1]).href).catch((error) => {
  tell({ broken: String((error && error.stack) || error).slice(0, 2000) });
  process.exitCode = 7;
});
