// Writes src/api.ts from the operator's OpenAPI document, so that the dashboard speaks exactly what the supervisor does.
//   node scripts/api-types.mjs [--check]
import { readFileSync, writeFileSync } from "node:fs";

const source = new URL("../../schemas/operator.openapi.json", import.meta.url);
const target = new URL("../src/api.ts", import.meta.url);

const document_ = JSON.parse(readFileSync(source, "utf8"));
const text = render(document_);

if (!process.argv.includes("--check")) {
  writeFileSync(target, text);
} else if (readFileSync(target, "utf8") !== text) {
  console.error("src/api.ts is stale: npm run api");
  process.exit(1);
}

function render(api) {
  const types = Object.entries(api.components.schemas).map(
    ([name, schema]) => `${comment(schema.description, "")}export type ${name} = ${type(schema, "")};\n`,
  );
  return [
    "// Made by scripts/api-types.mjs from schemas/operator.openapi.json. Do not edit.\n",
    ...types,
    `/** Who may ask for what, as the supervisor's table of routes says. */\nexport const ROLES = ${roles(api)} as const;\n`,
    `/** Every word of the types that are words. */\nexport const WORDS = ${words(api)} as const;\n`,
  ].join("\n");
}

/** The role each operation needs, by the name of the operation. */
function roles(api) {
  const lines = Object.values(api.paths)
    .flatMap((path) => Object.values(path))
    .filter((operation) => operation.operationId !== undefined)
    .map((operation) => `  ${operation.operationId}: ${JSON.stringify(operation["x-role"])},`);
  return `{\n${lines.join("\n")}\n}`;
}

/** The words of each type that is a choice of words, for menus and for checks that nothing is left out. */
function words(api) {
  const lines = Object.entries(api.components.schemas)
    .filter(([, schema]) => schema.oneOf?.every((part) => typeof part.const === "string"))
    .map(([name, schema]) => `  ${name}: ${JSON.stringify(schema.oneOf.map((part) => part.const))},`);
  return `{\n${lines.join("\n")}\n}`;
}

function comment(description, indent) {
  if (description === undefined) return "";
  const lines = description.replaceAll("*/", "* /").split("\n");
  if (lines.length === 1) return `${indent}/** ${lines[0]} */\n`;
  return `${indent}/**\n${lines.map((line) => `${indent} *${line === "" ? "" : ` ${line}`}\n`).join("")}${indent} */\n`;
}

function type(schema, indent) {
  if (schema === true) return "unknown";
  if (schema.$ref !== undefined) return schema.$ref.split("/").at(-1);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum !== undefined) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const union = schema.oneOf ?? schema.anyOf;
  if (union !== undefined) return union.map((part) => type(part, indent)).join(" | ");
  if (Array.isArray(schema.type)) {
    return schema.type.map((one) => type({ ...schema, type: one }, indent)).join(" | ");
  }
  switch (schema.type) {
    case "null":
      return "null";
    case "string":
      return "string";
    case "boolean":
      return "boolean";
    case "integer":
    case "number":
      return "number";
    case "array":
      return `Array<${type(schema.items ?? true, indent)}>`;
    case "object":
      return object(schema, indent);
    case undefined:
      return "unknown";
    default:
      throw new Error(`a schema of an unknown type: ${JSON.stringify(schema)}`);
  }
}

function object(schema, indent) {
  const fields = Object.entries(schema.properties ?? {});
  if (fields.length === 0 && typeof schema.additionalProperties === "object")
    return `Record<string, ${type(schema.additionalProperties, indent)}>`;
  if (fields.length === 0) return "Record<string, never>";
  const inner = `${indent}  `;
  const required = new Set(schema.required ?? []);
  const lines = fields.map(
    ([name, field]) =>
      `${comment(field.description, inner)}${inner}${name}${required.has(name) ? "" : "?"}: ${type(field, inner)};\n`,
  );
  return `{\n${lines.join("")}${indent}}`;
}
