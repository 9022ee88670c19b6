/** Dialogs are the browser's own: it keeps the focus inside, closes them with Escape and gives the focus back. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Problem } from "../api.ts";
import { problemOf } from "../client.ts";
import { reasonProblem } from "../lib/clean.ts";
import { Failed } from "./bits.tsx";

export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren; wide?: boolean }) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = element.current;
    const before = document.activeElement;
    dialog?.showModal();
    return () => {
      dialog?.close();
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: Escape closes it; a click beside it is a shortcut for pointers.
    <dialog
      ref={element}
      class={props.wide ? "dialog wide" : "dialog"}
      aria-label={props.title}
      onCancel={(event) => {
        event.preventDefault();
        props.onClose();
      }}
      onClick={(event) => {
        if (event.target === element.current) props.onClose();
      }}
    >
      <div class="dialog-body">
        <h2>{props.title}</h2>
        {props.children}
      </div>
    </dialog>
  );
}

/** Asks for the reason that an action is recorded with, does it, and says what went wrong where something did. */
export function ReasonDialog(props: {
  title: string;
  action: string;
  danger?: boolean;
  children?: ComponentChildren;
  onClose: () => void;
  onConfirm: (reason: string) => Promise<unknown>;
}) {
  const [reason, setReason] = useState("");
  const [asked, setAsked] = useState(false);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const wrong = asked ? reasonProblem(reason) : undefined;

  const confirm = async (event: Event) => {
    event.preventDefault();
    setAsked(true);
    if (reasonProblem(reason) !== undefined || busy) return;
    setBusy(true);
    setProblem(undefined);
    try {
      await props.onConfirm(reason.trim());
      props.onClose();
    } catch (error) {
      setProblem(problemOf(error));
      setBusy(false);
    }
  };

  return (
    <Dialog title={props.title} onClose={props.onClose}>
      <form onSubmit={confirm} noValidate>
        {props.children}
        <label class="field">
          <span>Reason</span>
          <input
            type="text"
            value={reason}
            maxLength={512}
            autoFocus
            autocomplete="off"
            placeholder="It goes to the ledger"
            aria-invalid={wrong === undefined ? undefined : "true"}
            aria-describedby="reason-problem"
            onInput={(event) => setReason(event.currentTarget.value)}
          />
        </label>
        <p class="field-problem" id="reason-problem" role="status">
          {wrong}
        </p>
        {problem === undefined ? null : <Failed problem={problem} />}
        <div class="dialog-actions">
          <button type="button" onClick={props.onClose}>
            Cancel
          </button>
          <button type="submit" class={props.danger ? "danger" : "primary"} disabled={busy}>
            {busy ? "Working…" : props.action}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
