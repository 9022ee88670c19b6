/** The live stream: one connection, made again with growing pauses, silent only for so long. */
import { backoff, type LiveMessage } from "./lib/live.ts";

export type Connection =
  | { readonly is: "connecting" }
  | { readonly is: "live" }
  /** Down; the next attempt is at `retryAt`. */
  | {
      readonly is: "down";
      readonly since: number;
      readonly retryAt: number;
      /** Whether the supervisor answers, and only the stream is refused. */
      readonly isRefused: boolean;
    };

/** What is known about the session after an attempt failed. */
export type Standing = "in" | "out" | "unreachable";

export interface StreamEvents {
  /** A connection is up; messages of a new stream follow. */
  onOpen(): void;
  onMessage(message: LiveMessage): void;
  onConnection(connection: Connection): void;
  /** Asked before each attempt after a failure, since a stream that is refused does not say why. */
  askStanding(): Promise<Standing>;
}

const LOST_PAUSE_MS = 500;
const NAMES = ["agents", "forgotten", "event", "alert", "holds", "status"] as const;

export class Stream {
  #source: EventSource | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #attempt = 0;
  #downSince = 0;
  #stopped = false;
  #isAnswering = false;

  constructor(readonly events: StreamEvents) {
    this.#connect();
  }

  /** Tries now rather than when the pause is over. */
  retryNow(): void {
    if (this.#stopped || this.#source !== undefined) return;
    clearTimeout(this.#timer);
    this.#connect();
  }

  /** Nothing came for long, and the supervisor does not answer: the connection is one in name only. */
  suspect(): void {
    if (this.#source !== undefined) this.#dropped(this.#source);
  }

  stop(): void {
    this.#stopped = true;
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = undefined;
  }

  #connect(): void {
    // What is down stays so until it is up: a notice that comes and goes with each attempt can't be read.
    if (this.#downSince === 0) this.events.onConnection({ is: "connecting" });
    const source = new EventSource("/v1/stream");
    this.#source = source;
    source.onopen = () => {
      this.#attempt = 0;
      this.#downSince = 0;
      this.#isAnswering = false;
      this.events.onOpen();
      this.events.onConnection({ is: "live" });
    };
    // The browser would try again by itself, but without telling when and without ever giving up on a session that ended.
    source.onerror = () => this.#dropped(source);
    for (const name of NAMES) {
      source.addEventListener(name, (message: MessageEvent<string>) => {
        this.events.onMessage({ is: name, data: JSON.parse(message.data) } as LiveMessage);
      });
    }
    source.addEventListener("lost", () => {
      this.events.onMessage({ is: "lost" });
      this.#beginAgain(source);
    });
  }

  /** This page was too slow, and the supervisor is well: all is asked for again, after a breath. */
  #beginAgain(source: EventSource): void {
    source.close();
    if (this.#stopped || this.#source !== source) return;
    this.#source = undefined;
    this.events.onConnection({ is: "connecting" });
    this.#timer = setTimeout(() => this.retryNow(), LOST_PAUSE_MS);
  }

  #dropped(source: EventSource): void {
    source.close();
    if (this.#stopped || this.#source !== source) return;
    this.#source = undefined;
    const now = Date.now();
    if (this.#downSince === 0) this.#downSince = now;
    const pause = backoff(this.#attempt, Math.random());
    this.#attempt += 1;
    this.events.onConnection({
      is: "down",
      since: this.#downSince,
      retryAt: now + pause,
      isRefused: this.#isAnswering,
    });
    this.#timer = setTimeout(async () => {
      const standing = await this.events.askStanding();
      if (standing === "out") return;
      this.#isAnswering = standing === "in";
      if (!this.#stopped && this.#source === undefined) this.#connect();
    }, pause);
  }
}
