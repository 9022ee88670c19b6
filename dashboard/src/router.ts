/** Which page: it stands after the `#`, so that it can be kept, sent and gone back from. */
import { signal } from "@preact/signals";

export const PAGES = ["fleet", "lineage", "alerts", "holds", "proposals", "events", "ledger", "stop"] as const;
export type PageName = (typeof PAGES)[number];

export type Route =
  | { readonly page: PageName; readonly query: URLSearchParams }
  | { readonly page: "agent"; readonly id: string; readonly query: URLSearchParams }
  | { readonly page: "proposal"; readonly id: string; readonly query: URLSearchParams }
  | { readonly page: "missing"; readonly query: URLSearchParams };

export function parseRoute(hash: string): Route {
  const [path = "", search = ""] = hash.replace(/^#?\/?/, "").split("?", 2);
  const query = new URLSearchParams(search);
  const [head = "", id, ...rest] = path.split("/").filter(Boolean);
  if (head === "") return { page: "fleet", query };
  if (head === "agents" && id !== undefined && rest.length === 0 && /^[\w-]{1,64}$/.test(id)) {
    return { page: "agent", id, query };
  }
  if (head === "proposals" && id !== undefined && rest.length === 0 && /^[0-9a-f]{64}$/.test(id)) {
    return { page: "proposal", id, query };
  }
  const page = PAGES.find((name) => name === head);
  return page !== undefined && id === undefined ? { page, query } : { page: "missing", query };
}

export const route = signal<Route>(parseRoute(typeof location === "undefined" ? "" : location.hash));

export function listen(): void {
  addEventListener("hashchange", () => {
    route.value = parseRoute(location.hash);
  });
}

export const agentLink = (id: string) => `#/agents/${id}`;
export const proposalLink = (id: string) => `#/proposals/${id}`;
export const pageLink = (page: PageName, query?: Record<string, string>) =>
  `#/${page}${query === undefined ? "" : `?${new URLSearchParams(query)}`}`;

export function go(link: string): void {
  location.hash = link.replace(/^#/, "");
}

/** Changes what stands after the page's `?` without a step in the history: a search is not a place to go back to. */
export function setQuery(changes: Record<string, string | undefined>): void {
  const query = new URLSearchParams(route.value.query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === undefined || value === "") query.delete(name);
    else query.set(name, value);
  }
  const [path = ""] = location.hash.split("?", 1);
  const text = query.toString();
  history.replaceState(null, "", `${path === "" ? "#/" : path}${text === "" ? "" : `?${text}`}`);
  route.value = { ...route.value, query };
}
