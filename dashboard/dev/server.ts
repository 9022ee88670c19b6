/** The made-up supervisor over HTTP, with the headers, the login and the stream of the real one. */
import { readFileSync } from "node:fs";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { extname } from "node:path";
import { gzipSync } from "node:zlib";
import type { Role } from "../src/client.ts";
import { type Answer, answer, refusal } from "./routes.ts";
import { DEFAULTS, DevSupervisor, newSecret, type Settings } from "./supervisor.ts";

export const TOKENS: Record<Role, string> = { viewer: "dev-viewer", operator: "dev-operator", admin: "dev-admin" };
const CSP =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
const KINDS: Record<string, string> = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".svg": "image/svg+xml",
};
const MOST_BODY = 64 * 1024;

interface Session {
  readonly name: string;
  readonly role: Role;
  readonly csrf: string;
}

export class DevServer {
  readonly supervisor: DevSupervisor;
  readonly sessions = new Map<string, Session>();
  #server: Server | undefined;
  readonly #streams = new Set<ServerResponse>();
  #port = 0;

  constructor(settings: Partial<Settings> = {}) {
    this.supervisor = new DevSupervisor({ ...DEFAULTS, ...settings });
    this.supervisor.start();
  }

  get url(): string {
    return `http://127.0.0.1:${this.#port}`;
  }

  /** Listens, on the same port as before where it was stopped. */
  async listen(port = this.#port): Promise<void> {
    const server = createServer((request, response) => {
      this.#serve(request, response).catch(() => response.destroy());
    });
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen(port, "127.0.0.1", resolve);
    });
    this.#server = server;
    this.#port = (server.address() as AddressInfo).port;
  }

  /** Drops every connection, as a supervisor that ends does. */
  async unlisten(): Promise<void> {
    for (const stream of this.#streams) stream.destroy();
    const server = this.#server;
    this.#server = undefined;
    if (server === undefined) return;
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  }

  async close(): Promise<void> {
    this.supervisor.stop();
    await this.unlisten();
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? "/", "http://dashboard");
    response.setHeader("Content-Security-Policy", CSP);
    response.setHeader("X-Content-Type-Options", "nosniff");
    response.setHeader("Referrer-Policy", "no-referrer");
    if (!url.pathname.startsWith("/v1/")) {
      page(request, response, url.pathname);
      return;
    }
    response.setHeader("Cache-Control", "no-store");
    const body = await read(request);
    if (url.pathname === "/v1/session" && request.method === "POST") {
      this.#logIn(response, body);
      return;
    }
    const asker = this.#asker(request);
    if (asker === undefined) {
      send(response, refusal(401, "unauthorized", "This needs a token."));
    } else if (asker === "forged") {
      send(response, refusal(403, "csrf", "The request lacks the session's own token."));
    } else if (url.pathname === "/v1/session") {
      send(response, { status: 200, body: asker });
    } else if (url.pathname === "/v1/session/end") {
      this.sessions.delete(cookie(request));
      send(response, { status: 200, body: {} });
    } else if (url.pathname === "/v1/stream") {
      this.#stream(response);
    } else {
      send(response, await answer(this.supervisor, asker, request.method ?? "GET", url, body));
    }
  }

  /** Tells every page that it was too slow. */
  loseMessages(): void {
    for (const stream of this.#streams) stream.write("event: lost\ndata: null\n\n");
  }

  #logIn(response: ServerResponse, body: unknown): void {
    const { token } = (body ?? {}) as { token?: unknown };
    const role = (Object.keys(TOKENS) as Role[]).find((one) => TOKENS[one] === token);
    if (role === undefined) {
      send(response, {
        ...refusal(401, "bad_token", "This token is not known."),
        body: {
          code: "bad_token",
          message: "This token is not known.",
          hint: "belljar token list says which there are.",
        },
      });
      return;
    }
    const id = newSecret();
    const session: Session = { name: `dev ${role}`, role, csrf: newSecret() };
    this.sessions.set(id, session);
    response.setHeader("Set-Cookie", `belljar=${id}; HttpOnly; SameSite=Strict; Path=/`);
    send(response, { status: 200, body: session });
  }

  #asker(request: IncomingMessage): Session | "forged" | undefined {
    const bearer = /^Bearer (.+)$/.exec(request.headers.authorization ?? "")?.[1];
    if (bearer !== undefined) {
      const role = (Object.keys(TOKENS) as Role[]).find((one) => TOKENS[one] === bearer);
      return role === undefined ? undefined : { name: `dev ${role}`, role, csrf: "" };
    }
    const session = this.sessions.get(cookie(request));
    if (session !== undefined && request.method === "POST" && request.headers["x-belljar-csrf"] !== session.csrf)
      return "forged";
    return session;
  }

  #stream(response: ServerResponse): void {
    response.writeHead(200, { "Content-Type": "text/event-stream" });
    this.#streams.add(response);
    const leave = this.supervisor.subscribe((message) => {
      const data = "data" in message ? message.data : null;
      response.write(`event: ${message.is}\ndata: ${JSON.stringify(data)}\n\n`);
    });
    response.on("close", () => {
      leave();
      this.#streams.delete(response);
    });
  }
}

function cookie(request: IncomingMessage): string {
  return /(?:^|;\s*)belljar=([^;]+)/.exec(request.headers.cookie ?? "")?.[1] ?? "";
}

async function read(request: IncomingMessage): Promise<unknown> {
  let text = "";
  for await (const chunk of request) {
    text += chunk;
    if (text.length > MOST_BODY) throw new Error("a body that is too long");
  }
  return text === "" ? undefined : JSON.parse(text);
}

function send(response: ServerResponse, { status, body }: Answer): void {
  response.writeHead(status, { "Content-Type": "application/json" });
  response.end(JSON.stringify(body));
}

/** A built file, or the one document for whatever looks like a page. */
function page(request: IncomingMessage, response: ServerResponse, path: string): void {
  const name = /^\/(assets\/)?[\w.-]+\.\w+$/.test(path) ? path.slice(1) : "index.html";
  let content: Buffer;
  try {
    content = readFileSync(new URL(`../dist/${name}`, import.meta.url));
  } catch {
    response.writeHead(404).end();
    return;
  }
  const packs = (request.headers["accept-encoding"] ?? "").includes("gzip");
  response.writeHead(200, {
    "Content-Type": KINDS[extname(name)] ?? "application/octet-stream",
    ...(packs ? { "Content-Encoding": "gzip" } : {}),
  });
  response.end(packs ? gzipSync(content) : content);
}
