/** Keys. Single letters can be turned off, since speech input types them by accident. */
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { go, type PageName, pageLink } from "../router.ts";
import { recall, remember, toggleTheme } from "../theme.ts";
import { Dialog } from "../ui/dialog.tsx";

const KEY = "belljar-keys";
const enabled = signal(recall(KEY) !== "off");

const PLACES: Record<string, PageName> = {
  f: "fleet",
  l: "lineage",
  a: "alerts",
  h: "holds",
  p: "proposals",
  e: "events",
  d: "ledger",
  s: "stop",
};

const LIST: ReadonlyArray<readonly [string, string]> = [
  ["?", "This list"],
  ["/", "Search"],
  ["j  k", "Next, previous row"],
  ["Enter", "Open the row"],
  ["g f", "Fleet"],
  ["g l", "Lineage"],
  ["g a", "Alerts"],
  ["g h", "Holds"],
  ["g p", "Proposals"],
  ["g e", "Events"],
  ["g d", "Ledger"],
  ["g s", "Emergency stop"],
  ["t", "Light or dark"],
  ["Esc", "Close, leave the search"],
];

export function useShortcuts(onHelp: () => void): void {
  useEffect(() => {
    let leader = 0;
    const pressed = (event: KeyboardEvent) => {
      const { target } = event;
      if (event.key === "Escape" && target instanceof HTMLElement && target.matches("[data-search]")) {
        target.blur();
        document.getElementById("content")?.focus();
        return;
      }
      if (!enabled.value || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
      if (document.querySelector("dialog[open]") !== null) return;
      const afterG = event.timeStamp - leader < 1500;
      leader = 0;
      const place = PLACES[event.key];
      if (afterG && place !== undefined) go(pageLink(place));
      else if (event.key === "g") leader = event.timeStamp;
      else if (event.key === "?") onHelp();
      else if (event.key === "t") toggleTheme();
      else if (event.key === "j") step(1);
      else if (event.key === "k") step(-1);
      else if (event.key === "/") document.querySelector<HTMLElement>("[data-search]")?.focus();
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [onHelp]);
}

/** Moves the focus from row to row. Rows near the edge of the view are drawn already, so there is a next one. */
function step(by: 1 | -1): void {
  const rows = [...document.querySelectorAll<HTMLElement>("[data-row]")];
  const at = rows.indexOf(document.activeElement as HTMLElement);
  const next = at === -1 ? rows.find(isInView) : rows[at + by];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

function isInView(row: HTMLElement): boolean {
  const view = document.getElementById("content")?.getBoundingClientRect();
  return view === undefined || row.getBoundingClientRect().top >= view.top;
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && target.matches("input, textarea, select, [contenteditable]");
}

export function ShortcutsDialog({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose}>
      <dl class="keys">
        {LIST.map(([keys, what]) => (
          <div key={keys}>
            <dt>
              {keys.split(/\s+/).map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <label class="check">
        <input
          type="checkbox"
          checked={enabled.value}
          onChange={(event) => {
            enabled.value = event.currentTarget.checked;
            remember(KEY, enabled.value ? "on" : "off");
          }}
        />
        Single-key shortcuts
      </label>
      <div class="dialog-actions">
        <button type="button" class="primary" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
