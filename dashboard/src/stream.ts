/** The live stream: one connection, made again with growing pauses, silent only for so long. */
import { backoff, type LiveMessage } from "./lib/live.ts";

export type Connection =
  | { readonly is: "connecting" }
  | { readonly is: "live" }
  /** Down; the next attempt is at `retryAt`. */
  | { readonly is: "down"; readonly since: number; readonly retryAt: number; readonly attempt: number };

export interface StreamEvents {
  /** A connection is up; messages of a new stream follow. */
  onOpen(): void;
  onMessage(message: LiveMessage): void;
  onConnection(connection: Connection): void;
  /** Asked before each attempt after a failure, since a stream that is refused does not say why. */
  isStillLoggedIn(): Promise<boolean>;
}

const NAMES = ["agents", "forgotten", "event", "alert", "status"] as const;

export class Stream {
  #source: EventSource | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #attempt = 0;
  #downSince = 0;
  #stopped = false;

  constructor(readonly events: StreamEvents) {
    this.#connect();
  }

  /** Tries now rather than when the pause is over. */
  retryNow(): void {
    if (this.#stopped || this.#source !== undefined) return;
    clearTimeout(this.#timer);
    this.#connect();
  }

  stop(): void {
    this.#stopped = true;
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = undefined;
  }

  #connect(): void {
    this.events.onConnection({ is: "connecting" });
    const source = new EventSource("/v1/stream");
    this.#source = source;
    source.onopen = () => {
      this.#attempt = 0;
      this.#downSince = 0;
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
      this.#dropped(source);
    });
  }

  #dropped(source: EventSource): void {
    source.close();
    if (this.#stopped || this.#source !== source) return;
    this.#source = undefined;
    const now = Date.now();
    if (this.#downSince === 0) this.#downSince = now;
    const pause = backoff(this.#attempt, Math.random());
    this.#attempt += 1;
    this.events.onConnection({ is: "down", since: this.#downSince, retryAt: now + pause, attempt: this.#attempt });
    this.#timer = setTimeout(async () => {
      if (!(await this.events.isStillLoggedIn())) return;
      if (!this.#stopped && this.#source === undefined) this.#connect();
    }, pause);
  }
}
