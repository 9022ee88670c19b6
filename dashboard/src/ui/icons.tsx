/** Marks and icons, drawn here: nothing is fetched. All are decoration beside a word. */
import type { ComponentChildren } from "preact";

/** The bell jar: a glass over something that is alive. */
export function Mark({ size = 24 }: { size?: number }) {
  return (
    <svg class="mark" width={size} height={size} viewBox="0 0 24 24" aria-hidden="true">
      <path class="mark-glass" d="M5 19V11a7 7 0 0 1 14 0v8z" />
      <path class="mark-line" d="M5 19V11a7 7 0 0 1 14 0v8" />
      <path class="mark-line" d="M3 19h18M4.5 21.5h15" />
      <circle class="mark-line" cx="12" cy="2.6" r="1.1" />
      <path class="mark-shine" d="M8.2 11.4A3.9 3.9 0 0 1 11 7.8" />
      <circle class="mark-life" cx="12" cy="15" r="1.9" />
    </svg>
  );
}

function Icon({ children }: { children: ComponentChildren }) {
  return (
    <svg class="icon" width="18" height="18" viewBox="0 0 20 20" aria-hidden="true">
      {children}
    </svg>
  );
}

export const FleetIcon = () => (
  <Icon>
    <path d="M3 5h14M3 10h14M3 15h14" />
    <circle cx="6" cy="5" r="1.4" />
    <circle cx="13" cy="10" r="1.4" />
    <circle cx="9" cy="15" r="1.4" />
  </Icon>
);
export const LineageIcon = () => (
  <Icon>
    <path d="M10 5v5M4 15v-2.5A2.5 2.5 0 0 1 6.5 10h7a2.5 2.5 0 0 1 2.5 2.5V15" />
    <circle cx="10" cy="3.6" r="1.6" />
    <circle cx="4" cy="16.4" r="1.6" />
    <circle cx="16" cy="16.4" r="1.6" />
  </Icon>
);
export const AlertsIcon = () => (
  <Icon>
    <path d="M10 3 2.5 16.5h15zM10 8.5v3.5M10 14.3v.2" />
  </Icon>
);
export const HoldsIcon = () => (
  <Icon>
    <circle cx="10" cy="10" r="7.5" />
    <path d="M8 7v6M12 7v6" />
  </Icon>
);
export const ProposalsIcon = () => (
  <Icon>
    <circle cx="5.5" cy="4.5" r="2" />
    <circle cx="5.5" cy="15.5" r="2" />
    <circle cx="14.5" cy="15.5" r="2" />
    <path d="M5.5 6.5v7M14.5 13.5V8a3 3 0 0 0-3-3H9.5M12 2.5 9.5 5 12 7.5" />
  </Icon>
);
export const EventsIcon = () => (
  <Icon>
    <path d="M5 2.5v15M8.5 5H17M8.5 10H15M8.5 15H17" />
    <circle cx="5" cy="5" r="1.5" />
    <circle cx="5" cy="10" r="1.5" />
    <circle cx="5" cy="15" r="1.5" />
  </Icon>
);
export const LedgerIcon = () => (
  <Icon>
    <path d="M4 3h9.5L16 5.5V17H4zM7 8h6M7 11h6M7 14h3.5" />
  </Icon>
);
export const StopIcon = () => (
  <Icon>
    <path d="M6.8 2.5h6.4l4.3 4.3v6.4l-4.3 4.3H6.8l-4.3-4.3V6.8zM7 10h6" />
  </Icon>
);
export const SunIcon = () => (
  <Icon>
    <circle cx="10" cy="10" r="3.5" />
    <path d="M10 2v2M10 16v2M2 10h2M16 10h2M4.3 4.3l1.4 1.4M14.3 14.3l1.4 1.4M4.3 15.7l1.4-1.4M14.3 5.7l1.4-1.4" />
  </Icon>
);
export const MoonIcon = () => (
  <Icon>
    <path d="M16.5 12A7 7 0 0 1 8 3.5 7 7 0 1 0 16.5 12z" />
  </Icon>
);
export const KeysIcon = () => (
  <Icon>
    <path d="M2.5 5.5h15v9h-15zM5.5 8.5h.1M8.5 8.5h.1M11.5 8.5h.1M14.5 8.5h.1M6.5 11.5h7" />
  </Icon>
);
export const LeaveIcon = () => (
  <Icon>
    <path d="M12 3H4v14h8M8.5 10H17M14 7l3 3-3 3" />
  </Icon>
);
