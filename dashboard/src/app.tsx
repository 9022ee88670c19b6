/** The frame around every page. */
import { useEffect, useState } from "preact/hooks";
import { line } from "./lib/clean.ts";
import { AgentPage } from "./pages/agent/agent.tsx";
import { AlertsPage } from "./pages/alerts.tsx";
import { EventsPage } from "./pages/events.tsx";
import { FleetPage } from "./pages/fleet.tsx";
import { HoldsPage } from "./pages/holds.tsx";
import { LedgerPage } from "./pages/ledger.tsx";
import { LineagePage } from "./pages/lineage.tsx";
import { LoginPage, UnreachablePage } from "./pages/login.tsx";
import { ProposalPage } from "./pages/proposal.tsx";
import { ProposalsPage } from "./pages/proposals.tsx";
import { StopPage } from "./pages/stop.tsx";
import { type Route, route } from "./router.ts";
import { KillSwitchBanner, TroubleBanners } from "./shell/banners.tsx";
import { Navigation, TopBar } from "./shell/navigation.tsx";
import { ShortcutsDialog, useShortcuts } from "./shell/shortcuts.tsx";
import { killSwitch, login, openAlerts, world } from "./store.ts";
import { Empty, Loading } from "./ui/bits.tsx";

export function App() {
  switch (login.value.is) {
    case "asking":
      return <Loading what="the dashboard" />;
    case "unreachable":
      return <UnreachablePage />;
    case "out":
      return <LoginPage why={login.value.why} />;
    case "in":
      return <Shell />;
  }
}

const TITLES: Record<Route["page"], string> = {
  fleet: "Fleet",
  agent: "Agent",
  lineage: "Lineage",
  alerts: "Alerts",
  holds: "Holds",
  proposals: "Proposals",
  proposal: "Proposal",
  events: "Events",
  ledger: "Ledger",
  stop: "Emergency stop",
  missing: "Nothing here",
};

/** Pages that show a heading of their own. */
const OWN_HEADING: ReadonlySet<Route["page"]> = new Set(["agent", "proposal", "ledger", "stop"]);

function Shell() {
  const [help, setHelp] = useState(false);
  useShortcuts(() => setHelp(true));
  const current = route.value;
  const place =
    current.page === "agent" || current.page === "proposal" ? `${current.page}/${current.id}` : current.page;
  const alerts = openAlerts.value;
  const agent = current.page === "agent" ? world().agents.get(current.id)?.name : undefined;
  const title = agent === undefined ? TITLES[current.page] : line(agent, 60);
  const engaged = killSwitch.value !== undefined;

  useEffect(() => {
    const many = alerts > 0 ? `(${alerts}) ` : "";
    document.title = `${engaged ? "■ " : ""}${many}${title} · Belljar`;
  }, [alerts, engaged, title]);

  // A new place begins at its top.
  useEffect(() => {
    document.getElementById("content")?.scrollTo(0, 0);
  }, [place]);

  return (
    <div class="shell">
      {/* biome-ignore lint/a11y/useValidAnchor: it goes to a place on this page, which its address has no room for. */}
      <a class="skip" href="#content" onClick={skip}>
        Skip to the content
      </a>
      <TopBar onHelp={() => setHelp(true)} />
      <Navigation />
      <main id="content" tabIndex={-1} aria-label={TITLES[current.page]}>
        <KillSwitchBanner />
        <TroubleBanners />
        {OWN_HEADING.has(current.page) ? null : <h1 class="hidden">{TITLES[current.page]}</h1>}
        <Page key={place} />
      </main>
      {help ? <ShortcutsDialog onClose={() => setHelp(false)} /> : null}
    </div>
  );
}

function skip(event: Event): void {
  // The page's own address stands after the `#`.
  event.preventDefault();
  document.getElementById("content")?.focus();
}

function Page() {
  const current = route.value;
  switch (current.page) {
    case "fleet":
      return <FleetPage />;
    case "agent":
      return <AgentPage id={current.id} />;
    case "lineage":
      return <LineagePage />;
    case "alerts":
      return <AlertsPage />;
    case "holds":
      return <HoldsPage />;
    case "proposals":
      return <ProposalsPage />;
    case "proposal":
      return <ProposalPage id={current.id} />;
    case "events":
      return <EventsPage />;
    case "ledger":
      return <LedgerPage />;
    case "stop":
      return <StopPage />;
    case "missing":
      return (
        <Empty title="There is nothing at this address">
          <p>
            <a href="#/">Back to the fleet</a>
          </p>
        </Empty>
      );
  }
}
