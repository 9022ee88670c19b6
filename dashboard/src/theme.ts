/** Light, dark, or as the system says. */
import { signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";

const KEY = "belljar-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

export const theme = signal<Theme>(stored());
/** What is shown in the end; whatever draws with colours of its own follows it. */
export const shown = signal<"light" | "dark">("light");

function stored(): Theme {
  const value = recall(KEY);
  return value === "light" || value === "dark" ? value : "system";
}

export function applyTheme(next: Theme = theme.value): void {
  theme.value = next;
  remember(KEY, next);
  const effective = next === "system" ? (dark.matches ? "dark" : "light") : next;
  document.documentElement.dataset.theme = effective;
  shown.value = effective;
}

export function toggleTheme(): void {
  applyTheme(shown.value === "dark" ? "light" : "dark");
}

dark.addEventListener("change", () => applyTheme());

/** A browser may refuse to keep anything; the page works without. */
export function recall(key: string): string | null {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

export function remember(key: string, value: string): void {
  try {
    localStorage.setItem(key, value);
  } catch {
    // It holds until the page is closed, then.
  }
}
