/** Where one can go, and how the supervisor does. */
import { pageLink, route } from "../router.ts";
import { connection, login, logOut, openAlerts, world } from "../store.ts";
import { shown, toggleTheme } from "../theme.ts";
import { Untrusted } from "../ui/bits.tsx";
import {
  AlertsIcon,
  EventsIcon,
  FleetIcon,
  HoldsIcon,
  KeysIcon,
  LeaveIcon,
  LedgerIcon,
  LineageIcon,
  Mark,
  MoonIcon,
  ProposalsIcon,
  StopIcon,
  SunIcon,
} from "../ui/icons.tsx";

const PLACES = [
  { page: "fleet", label: "Fleet", Icon: FleetIcon },
  { page: "lineage", label: "Lineage", Icon: LineageIcon },
  { page: "alerts", label: "Alerts", Icon: AlertsIcon },
  { page: "holds", label: "Holds", Icon: HoldsIcon },
  { page: "proposals", label: "Evolve", Icon: ProposalsIcon },
  { page: "events", label: "Events", Icon: EventsIcon },
  { page: "ledger", label: "Ledger", Icon: LedgerIcon },
] as const;

export function Navigation() {
  const above = { agent: "fleet", proposal: "proposals" } as const;
  const { page: current } = route.value;
  const here = current === "agent" || current === "proposal" ? above[current] : current;
  return (
    <nav class="nav" aria-label="Pages">
      {PLACES.map(({ page, label, Icon }) => (
        <a key={page} href={pageLink(page)} aria-current={page === here ? "page" : undefined}>
          <Icon />
          <span>{label}</span>
          {page === "alerts" ? <Badge many={openAlerts.value} what="open" /> : null}
          {page === "holds" ? <Badge many={world().holds?.length ?? 0} what="waiting" /> : null}
        </a>
      ))}
    </nav>
  );
}

function Badge({ many, what }: { many: number; what: string }) {
  if (many === 0) return null;
  return (
    <span class="badge num">
      {many > 99 ? "99+" : many}
      <span class="hidden"> {what}</span>
    </span>
  );
}

export function TopBar({ onHelp }: { onHelp: () => void }) {
  const session = login.value.is === "in" ? login.value.session : undefined;
  return (
    <header class="top">
      <a class="brand" href="#/" aria-label="Belljar, to the fleet">
        <Mark size={26} />
        <span>Belljar</span>
      </a>
      <ConnectionState />
      <span class="grow" />
      <span class="who">
        <Untrusted text={session?.name ?? ""} most={40} />
        <span class="tag">{session?.role}</span>
      </span>
      <button
        type="button"
        class="quiet wide-only"
        onClick={onHelp}
        aria-label="Keyboard shortcuts"
        title="Shortcuts (?)"
      >
        <KeysIcon />
      </button>
      <button
        type="button"
        class="quiet"
        onClick={toggleTheme}
        aria-label={shown.value === "dark" ? "Use light colours" : "Use dark colours"}
        title="Light or dark (t)"
      >
        {shown.value === "dark" ? <SunIcon /> : <MoonIcon />}
      </button>
      <button type="button" class="quiet" onClick={() => void logOut()} aria-label="Log out" title="Log out">
        <LeaveIcon />
      </button>
      <a class="stop-link" href={pageLink("stop")} aria-current={route.value.page === "stop" ? "page" : undefined}>
        <StopIcon />
        <span>
          <span class="wide-only">Emergency </span>stop
        </span>
      </a>
    </header>
  );
}

/** Whether what is on the screen is true now. */
function ConnectionState() {
  const state = connection.value;
  if (state.is === "live") {
    return (
      <span class="connection connection-live" role="status">
        <span class="connection-dot" aria-hidden="true" />
        live
      </span>
    );
  }
  if (state.is === "connecting") {
    return (
      <span class="connection" role="status">
        <span class="connection-dot" aria-hidden="true" />
        connecting
      </span>
    );
  }
  return (
    <span class="connection connection-down" role="status">
      <span class="connection-dot" aria-hidden="true" />
      offline
    </span>
  );
}
