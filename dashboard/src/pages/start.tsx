/** Starting an agent. */
import { useState } from "preact/hooks";
import { type Problem, type RestartPolicy, WORDS } from "../api.ts";
import { problemOf } from "../client.ts";
import { words } from "../lib/format.ts";
import { splitWords } from "../lib/words.ts";
import { agentLink, go } from "../router.ts";
import { client, whyNot } from "../store.ts";
import { ActionButton, Failed } from "../ui/bits.tsx";
import { Dialog } from "../ui/dialog.tsx";

const PROFILES = ["strict", "moderate", "permissive"] as const;

export function StartButton() {
  const [open, setOpen] = useState(false);
  return (
    <>
      <ActionButton small label="Start an agent…" whyNot={whyNot("StartAgent")} onClick={() => setOpen(true)} />
      {open ? <StartDialog onClose={() => setOpen(false)} /> : null}
    </>
  );
}

function StartDialog({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [command, setCommand] = useState("");
  const [workdir, setWorkdir] = useState("");
  const [profile, setProfile] = useState<string>("moderate");
  const [capability, setCapability] = useState("");
  const [restart, setRestart] = useState<RestartPolicy>("never");
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const split = splitWords(command);
  const isWhole = name.trim() !== "" && split !== undefined && split.length > 0;

  const start = async (event: Event) => {
    event.preventDefault();
    if (!isWhole || busy) return;
    setBusy(true);
    setProblem(undefined);
    try {
      const agent = await client.start({
        name: name.trim(),
        command: split,
        restart,
        ...(workdir.trim() === "" ? {} : { workdir: workdir.trim() }),
        ...(capability.trim() === "" ? { profile } : { capability }),
      });
      onClose();
      go(agentLink(agent.id));
    } catch (error) {
      setProblem(problemOf(error));
      setBusy(false);
    }
  };

  return (
    <Dialog title="Start an agent" onClose={onClose}>
      <form onSubmit={start} noValidate>
        <label class="field">
          <span>Name</span>
          <input
            type="text"
            value={name}
            maxLength={128}
            autoFocus
            autocomplete="off"
            spellcheck={false}
            onInput={(event) => setName(event.currentTarget.value)}
          />
        </label>
        <label class="field">
          <span>Command</span>
          <input
            type="text"
            class="mono"
            value={command}
            autocomplete="off"
            spellcheck={false}
            placeholder="python3 agent.py --task 'a task'"
            aria-describedby="command-problem"
            onInput={(event) => setCommand(event.currentTarget.value)}
          />
        </label>
        <p class="field-problem" id="command-problem" role="status">
          {split === undefined ? "A quote is not closed." : ""}
        </p>
        <label class="field">
          <span>Directory</span>
          <input
            type="text"
            class="mono"
            value={workdir}
            autocomplete="off"
            spellcheck={false}
            placeholder="The supervisor’s own where nothing is said"
            onInput={(event) => setWorkdir(event.currentTarget.value)}
          />
        </label>
        <label class="field">
          <span>Profile</span>
          <select
            value={profile}
            disabled={capability.trim() !== ""}
            onChange={(event) => setProfile(event.currentTarget.value)}
          >
            {PROFILES.map((one) => (
              <option key={one} value={one}>
                {one}
              </option>
            ))}
          </select>
        </label>
        <label class="field">
          <span>Or a capability.yaml</span>
          <textarea
            class="mono"
            rows={4}
            value={capability}
            spellcheck={false}
            onInput={(event) => setCapability(event.currentTarget.value)}
          />
        </label>
        <label class="field">
          <span>When it ends by itself</span>
          <select value={restart} onChange={(event) => setRestart(event.currentTarget.value as RestartPolicy)}>
            {WORDS.RestartPolicy.map((one) => (
              <option key={one} value={one}>
                {one === "never" ? "it stays ended" : `started again: ${words(one)}`}
              </option>
            ))}
          </select>
        </label>
        {problem === undefined ? null : <Failed problem={problem} />}
        <div class="dialog-actions">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={busy || !isWhole}>
            {busy ? "Starting…" : "Start"}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
