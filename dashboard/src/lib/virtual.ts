/** Rows that are not in view are not drawn. */

export interface Window {
  /** The first row to draw. */
  readonly from: number;
  /** One past the last. */
  readonly to: number;
}

/**
 * Which rows are in view, and a few more on both sides so that a quick scroll does not show a gap.
 * `scrolled` is how far the top of the view is below the top of the list; it is negative while the list begins further down.
 */
export function rowsInView(scrolled: number, viewHeight: number, rowHeight: number, rows: number, spare = 8): Window {
  if (rows <= 0 || rowHeight <= 0) return { from: 0, to: 0 };
  const first = Math.floor(scrolled / rowHeight) - spare;
  const last = Math.ceil((scrolled + viewHeight) / rowHeight) + spare;
  const from = clamp(first, 0, rows);
  return { from, to: clamp(last, from, rows) };
}

/** How far to scroll so that a row is in view, as little as possible; the row's own position where it already is. */
export function scrollToRow(row: number, scrolled: number, viewHeight: number, rowHeight: number): number {
  const top = row * rowHeight;
  if (top < scrolled) return top;
  if (top + rowHeight > scrolled + viewHeight) return top + rowHeight - viewHeight;
  return scrolled;
}

function clamp(value: number, least: number, most: number): number {
  return Math.min(Math.max(value, least), most);
}
