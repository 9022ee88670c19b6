import { useState } from "preact/hooks";
import type { Problem } from "../api.ts";
import { problemOf } from "../client.ts";
import { askSession, logIn, login } from "../store.ts";
import { Failed } from "../ui/bits.tsx";
import { Mark } from "../ui/icons.tsx";

export function LoginPage({ why }: { why: string | undefined }) {
  const [token, setToken] = useState("");
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();

  const submit = async (event: Event) => {
    event.preventDefault();
    if (token.trim() === "" || busy) return;
    setBusy(true);
    setProblem(undefined);
    try {
      await logIn(token.trim());
    } catch (error) {
      setProblem(problemOf(error));
      setBusy(false);
    }
  };

  return (
    <main class="login">
      <form onSubmit={submit}>
        <Mark size={56} />
        <h1>Belljar</h1>
        <p class="muted">Autonomous agents, under glass.</p>
        {why === undefined ? null : <p class="notice">{why}</p>}
        <label class="field">
          <span>Token</span>
          <input
            type="password"
            name="token"
            value={token}
            autocomplete="current-password"
            // biome-ignore lint/a11y/noAutofocus: there is one thing to do here.
            autoFocus
            spellcheck={false}
            onInput={(event) => setToken(event.currentTarget.value)}
          />
        </label>
        {problem === undefined ? null : <Failed problem={problem} />}
        <button type="submit" class="primary" disabled={busy || token.trim() === ""}>
          {busy ? "Logging in…" : "Log in"}
        </button>
        <p class="muted small-text">
          No token yet? On the machine that runs the supervisor: <code>belljar token create --role viewer</code>
        </p>
      </form>
    </main>
  );
}

export function UnreachablePage() {
  return (
    <main class="login">
      <div class="card">
        <Mark size={56} />
        <h1>No answer</h1>
        <p class="muted">The supervisor can’t be reached. Agents that run stay under their limits.</p>
        <p class="muted small-text">
          On its machine: <code>belljar supervisor status</code>
        </p>
        <button
          type="button"
          class="primary"
          onClick={() => {
            login.value = { is: "asking" };
            void askSession();
          }}
        >
          Try again
        </button>
      </div>
    </main>
  );
}
