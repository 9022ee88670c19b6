/** What nobody may miss, on every page. */
import { useState } from "preact/hooks";
import { duration } from "../lib/format.ts";
import { pageLink } from "../router.ts";
import { client, connection, killSwitch, now, refreshStatus, retryNow, whyNot, world } from "../store.ts";
import { ActionButton, Ago, Untrusted } from "../ui/bits.tsx";
import { ReasonDialog } from "../ui/dialog.tsx";
import { StopIcon } from "../ui/icons.tsx";

export function KillSwitchBanner() {
  const [asking, setAsking] = useState(false);
  const engaged = killSwitch.value;
  if (engaged === undefined) return null;
  return (
    <section class="banner banner-stop" aria-label="Kill switch">
      <StopIcon />
      <div class="grow">
        <strong>The kill switch is engaged.</strong> Nothing starts until an admin resets it.
        <div class="banner-more">
          Engaged <Ago at={engaged.since_ms} />: “
          <Untrusted text={engaged.reason} />”
        </div>
      </div>
      <ActionButton label="Reset…" whyNot={whyNot("ResetKillSwitch")} onClick={() => setAsking(true)} />
      {asking ? (
        <ReasonDialog
          title="Reset the kill switch"
          action="Reset"
          onClose={() => setAsking(false)}
          onConfirm={async (reason) => {
            await client.resetKillSwitch(reason);
            await refreshStatus();
          }}
        >
          <p>Grants are given again from then on. Nothing that was killed comes back.</p>
        </ReasonDialog>
      ) : null}
    </section>
  );
}

export function TroubleBanners() {
  const { status } = world();
  const state = connection.value;
  const wait = state.is === "down" ? Math.ceil((state.retryAt - now.value) / 1000) : 0;
  return (
    <>
      {state.is === "down" ? (
        <section class="banner banner-warn" aria-label="Connection">
          <div class="grow">
            <strong>
              {state.isRefused
                ? "The supervisor refuses the live stream: too many pages may be open."
                : "The supervisor can’t be reached."}
            </strong>{" "}
            What you see is {duration(now.value - state.since)} old. Agents stay under their limits.{" "}
            {wait > 0 ? (
              <>
                Next attempt in <span class="num">{wait} s</span>.
              </>
            ) : (
              "Trying again…"
            )}
          </div>
          <button type="button" onClick={retryNow}>
            Retry now
          </button>
        </section>
      ) : null}
      {status?.ledger.failed ? (
        <section class="banner banner-stop" aria-label="Ledger">
          <div class="grow">
            <strong>The ledger can’t be written; every grant is refused.</strong>
            <div class="banner-more">
              <Untrusted text={status.ledger.failed} />
            </div>
          </div>
          <a class="button" href={pageLink("ledger")}>
            Open the ledger
          </a>
        </section>
      ) : null}
      {status?.clock.state === "went_back" ? <ClockBanner /> : null}
    </>
  );
}

function ClockBanner() {
  const [asking, setAsking] = useState(false);
  return (
    <section class="banner banner-warn" aria-label="Clock">
      <div class="grow">
        <strong>The wall clock was set back; every grant is refused.</strong> Ages and times may mislead until an admin
        accepts it.
      </div>
      <ActionButton label="Accept…" whyNot={whyNot("AcknowledgeClock")} onClick={() => setAsking(true)} />
      {asking ? (
        <ReasonDialog
          title="Accept the clock"
          action="Accept"
          onClose={() => setAsking(false)}
          onConfirm={async (reason) => {
            await client.acknowledgeClock(reason);
            await refreshStatus();
          }}
        >
          <p>The clock counts as steady again, and grants are given from then on.</p>
        </ReasonDialog>
      ) : null}
    </section>
  );
}
