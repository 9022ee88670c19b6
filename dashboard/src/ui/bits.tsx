/** Small parts that every page uses. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { AgentPhase, Problem, Severity } from "../api.ts";
import { line } from "../lib/clean.ts";
import { ago, duration, moment, words } from "../lib/format.ts";
import { now } from "../store.ts";
import { Mark } from "./icons.tsx";

/** Text that somebody outside had a hand in: one line, on its own reading direction, never longer than its place. */
export function Untrusted({ text, most, class: name }: { text: string; most?: number; class?: string }) {
  const clean = line(text, most);
  return (
    <bdi class={name === undefined ? "untrusted" : `untrusted ${name}`} title={clean}>
      {clean}
    </bdi>
  );
}

export function Phase({ phase }: { phase: AgentPhase }) {
  return (
    <span class={`phase phase-${phase}`}>
      <span class="phase-dot" aria-hidden="true" />
      {words(phase)}
    </span>
  );
}

export function SeverityTag({ severity }: { severity: Severity }) {
  return <span class={`tag severity-${severity}`}>{severity}</span>;
}

/** A moment as its distance from now, with the exact time for whoever points at it. */
export function Ago({ at }: { at: number }) {
  return (
    <time class="num" dateTime={new Date(at).toISOString()} title={moment(at)}>
      {ago(at, now.value)}
    </time>
  );
}

export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [state, setState] = useState<"idle" | "copied" | "failed">("idle");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setState("copied");
    } catch {
      setState("failed");
    }
    setTimeout(() => setState("idle"), 2000);
  };
  return (
    <button type="button" class="small" onClick={copy}>
      <span aria-live="polite">{state === "copied" ? "Copied" : state === "failed" ? "Not allowed here" : label}</span>
    </button>
  );
}

/** Gives the browser a file made here. */
export function download(name: string, text: string, type = "text/plain"): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  URL.revokeObjectURL(url);
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="state">
      <Mark size={40} />
      <h2>{title}</h2>
      {children}
    </div>
  );
}

export function Loading({ what }: { what: string }) {
  return (
    <div class="state" role="status">
      <span class="pulse" aria-hidden="true" />
      <p>Loading {what}…</p>
    </div>
  );
}

export function Failed({ problem, onRetry }: { problem: Problem; onRetry?: () => void }) {
  return (
    <div class="notice notice-bad" role="alert">
      <div>
        <strong>
          <Untrusted text={problem.message} most={600} />
        </strong>
        {problem.hint ? (
          <p>
            <Untrusted text={problem.hint} most={600} />
          </p>
        ) : null}
        {problem.retry_after_ms ? <p>Try again in {duration(problem.retry_after_ms + 999)}.</p> : null}
        <p class="mono muted">{line(problem.code, 64)}</p>
      </div>
      {onRetry === undefined ? null : (
        <button type="button" onClick={onRetry}>
          Try again
        </button>
      )}
    </div>
  );
}

/** A button that says why it can't be used rather than vanish. It stays reachable, so that the reason can be read. */
export function ActionButton(props: {
  label: string;
  whyNot: string | undefined;
  onClick: () => void;
  kind?: "danger" | "primary";
  small?: boolean;
}) {
  const disabled = props.whyNot !== undefined;
  const names = [props.kind, props.small ? "small" : undefined].filter(Boolean).join(" ");
  return (
    <button
      type="button"
      class={names}
      aria-disabled={disabled ? "true" : undefined}
      title={props.whyNot}
      aria-description={props.whyNot}
      onClick={() => {
        if (!disabled) props.onClick();
      }}
    >
      {props.label}
    </button>
  );
}

export function Field({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <div class="fact">
      <dt>{label}</dt>
      <dd>{children}</dd>
    </div>
  );
}

/** A choice of a few, of which one holds. */
export function Segments<Value extends string>(props: {
  label: string;
  value: Value;
  options: ReadonlyArray<readonly [Value, string]>;
  onChange: (value: Value) => void;
}) {
  return (
    <fieldset class="segments">
      <legend class="hidden">{props.label}</legend>
      {props.options.map(([value, text]) => (
        <button
          key={value}
          type="button"
          aria-pressed={value === props.value ? "true" : "false"}
          onClick={() => props.onChange(value)}
        >
          {text}
        </button>
      ))}
    </fieldset>
  );
}

export function Select<Value extends string>(props: {
  label: string;
  value: Value | "";
  all: string;
  options: readonly Value[];
  onChange: (value: Value | "") => void;
}) {
  return (
    <label class="select">
      <span class="hidden">{props.label}</span>
      <select value={props.value} onChange={(event) => props.onChange(event.currentTarget.value as Value | "")}>
        <option value="">{props.all}</option>
        {props.options.map((option) => (
          <option key={option} value={option}>
            {words(option)}
          </option>
        ))}
      </select>
    </label>
  );
}
