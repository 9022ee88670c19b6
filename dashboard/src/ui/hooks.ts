/** Ways for components to ask, to wait and to scroll. */
import type { RefObject } from "preact";
import { useCallback, useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Problem } from "../api.ts";
import { problemOf } from "../client.ts";
import { rowsInView, type Window } from "../lib/virtual.ts";
import { connection } from "../store.ts";

export type Asked<Value> =
  | { readonly is: "loading" }
  | { readonly is: "failed"; readonly problem: Problem }
  | { readonly is: "here"; readonly value: Value };

/**
 * Asks when it first shows, whenever `key` changes, every `every` milliseconds where given, and when the connection comes back.
 * What was there stays while it is asked for again.
 */
export function useAsked<Value>(key: string, ask: () => Promise<Value>, every?: number): [Asked<Value>, () => void] {
  const [state, setState] = useState<Asked<Value>>({ is: "loading" });
  const latest = useRef(ask);
  latest.current = ask;
  const turn = useRef(0);
  const isUp = connection.value.is === "live";
  const askedFor = useRef<string>();

  const again = useCallback(async () => {
    turn.current += 1;
    const mine = turn.current;
    try {
      const value = await latest.current();
      // An answer to a question that was asked again since is old.
      if (mine === turn.current) setState({ is: "here", value });
    } catch (error) {
      if (mine === turn.current)
        setState((before) => (before.is === "here" ? before : { is: "failed", problem: problemOf(error) }));
    }
  }, []);

  useEffect(() => {
    setState({ is: "loading" });
    return () => {
      turn.current += 1;
    };
  }, [key]);

  useEffect(() => {
    // A new question is asked whatever the connection is like: that it fails is an answer too.
    if (isUp || askedFor.current !== key) void again();
    askedFor.current = key;
    if (every === undefined) return;
    const timer = setInterval(() => {
      if (!document.hidden) void again();
    }, every);
    return () => clearInterval(timer);
  }, [key, isUp, every, again]);

  return [state, again];
}

/** The element that scrolls: all pages share it. */
export function scroller(): HTMLElement | null {
  return document.getElementById("content");
}

/** Which rows of a list are in view, as the page scrolls. */
export function useRowsInView(list: RefObject<HTMLElement>, rowHeight: number, rows: number): Window {
  const measure = useCallback((): Window => {
    const view = scroller();
    if (view === null || list.current === null) return rowsInView(0, 800, rowHeight, rows);
    const scrolled = view.getBoundingClientRect().top - list.current.getBoundingClientRect().top;
    return rowsInView(scrolled, view.clientHeight, rowHeight, rows);
  }, [list, rowHeight, rows]);
  const [shown, setShown] = useState<Window>(measure);

  useLayoutEffect(() => {
    const view = scroller();
    const update = () => {
      const next = measure();
      setShown((before) => (before.from === next.from && before.to === next.to ? before : next));
    };
    update();
    view?.addEventListener("scroll", update, { passive: true });
    addEventListener("resize", update);
    return () => {
      view?.removeEventListener("scroll", update);
      removeEventListener("resize", update);
    };
  }, [measure]);
  return { from: Math.min(shown.from, rows), to: Math.min(shown.to, rows) };
}

/** Whether the window is as narrow as a phone. */
export function useNarrow(): boolean {
  const [narrow, setNarrow] = useState(() => matchMedia("(max-width: 760px)").matches);
  useEffect(() => {
    const query = matchMedia("(max-width: 760px)");
    const update = () => setNarrow(query.matches);
    query.addEventListener("change", update);
    return () => query.removeEventListener("change", update);
  }, []);
  return narrow;
}
