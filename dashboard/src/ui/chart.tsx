/** A graph over time. */
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { shown } from "../theme.ts";

export interface Line {
  readonly label: string;
  /** The name of a colour of the theme. */
  readonly colour: string;
  readonly values: ReadonlyArray<number | null>;
}

export interface ChartProps {
  readonly title: string;
  /** Seconds since 1970, ascending. */
  readonly times: readonly number[];
  readonly lines: readonly Line[];
  readonly format: (value: number) => string;
  /** The limit, drawn as a dashed line. */
  readonly limit?: number | undefined;
  /** Whether the values are bytes, whose round numbers are powers of two. */
  readonly inBytes?: boolean;
  /** Whether the values are whole numbers: half a process is no mark on an axis. */
  readonly inWholes?: boolean;
  /** The least that the axis reaches to. */
  readonly least?: number;
  readonly from: number;
  readonly to: number;
}

/** The second that the pointer is at, in whichever graph. */
export const pointed = signal<number | undefined>(undefined);

const HEIGHT = 132;
const WHOLES = Array.from({ length: 16 }, (_, at) => [1, 2, 5].map((digit) => digit * 10 ** at)).flat();
const POWERS = Array.from({ length: 46 }, (_, at) => 2 ** at);

export function Chart(props: ChartProps) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>();
  const latest = useRef(props);
  latest.current = props;
  const theme = shown.value;
  const names = `${props.lines.map((line) => line.label).join()} ${props.to - props.from > 2 * 86_400}`;

  // Colours and lines are fixed when a graph is made; values and times are not. The names and the theme stand for both.
  useEffect(() => {
    const element = place.current;
    if (element === null) return;
    const made = new uPlot(options(latest, element.clientWidth), data(latest.current), element);
    plot.current = made;
    const resized = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }));
    resized.observe(element);
    return () => {
      resized.disconnect();
      made.destroy();
      plot.current = undefined;
    };
  }, [theme, names]);

  useEffect(() => {
    plot.current?.batch(() => {
      plot.current?.setData(data(props), false);
      plot.current?.setScale("x", { min: props.from, max: props.to });
    });
  });

  const at = pointed.value === undefined ? undefined : nearest(props.times, pointed.value);
  const last = props.lines.map((line) =>
    at === undefined ? (line.values.findLast((value) => value !== null) ?? 0) : (line.values[at] ?? 0),
  );
  return (
    <figure class="chart">
      <figcaption>
        <span class="chart-title">{props.title}</span>
        {props.lines.map((line, at) => (
          <span key={line.label} class="chart-key num">
            <span class={`swatch swatch-${line.colour}`} aria-hidden="true" />
            {props.lines.length > 1 ? `${line.label} ` : ""}
            {props.format(last[at] ?? 0)}
          </span>
        ))}
        {props.limit === undefined ? null : <span class="chart-limit num">limit {props.format(props.limit)}</span>}
      </figcaption>
      <div ref={place} class="chart-plot" data-points={props.times.length} data-last={props.times.at(-1)} />
    </figure>
  );
}

/** The place of the sample that is nearest to a time. */
export function nearest(times: readonly number[], at: number): number | undefined {
  let [low, high] = [0, times.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((times[middle] ?? 0) < at) low = middle + 1;
    else high = middle;
  }
  const [before, after] = [times[low - 1], times[low]];
  if (after === undefined) return before === undefined ? undefined : low - 1;
  return before !== undefined && at - before < after - at ? low - 1 : low;
}

function data(props: ChartProps): uPlot.AlignedData {
  return [[...props.times], ...props.lines.map((line) => [...line.values])];
}

function options(latest: { current: ChartProps }, width: number): uPlot.Options {
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string) => style.getPropertyValue(`--${name}`).trim();
  const axis: uPlot.Axis = {
    stroke: colour("text-2"),
    font: `11px ${style.getPropertyValue("--sans")}`,
    grid: { stroke: colour("grid"), width: 1 },
    ticks: { show: false },
  };
  const isLong = latest.current.to - latest.current.from > 2 * 86_400;
  return {
    width,
    height: HEIGHT,
    padding: [8, 20, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 }, sync: { key: "usage" } },
    scales: {
      x: { time: true, auto: false, range: () => [latest.current.from, latest.current.to] },
      y: { range: (_plot, _least, most) => [0, top(latest.current, most)] },
    },
    axes: [
      { ...axis, size: 24, space: 64, values: (_plot, at) => at.map(isLong ? date : time) },
      {
        ...axis,
        size: 62,
        space: 28,
        ...(latest.current.inBytes ? { incrs: POWERS } : {}),
        ...(latest.current.inWholes ? { incrs: WHOLES.filter((step) => step >= (latest.current.least ?? 1) / 2) } : {}),
        values: (_plot, at) => at.map((value) => latest.current.format(value)),
      },
    ],
    series: [
      {},
      ...latest.current.lines.map((line) => ({
        label: line.label,
        stroke: colour(line.colour),
        fill: `${colour(line.colour)}1f`,
        width: 1.5,
        points: { show: false },
      })),
    ],
    hooks: { draw: [(plot) => drawLimit(plot, latest.current.limit, colour("bad"))], setCursor: [readOut()] },
  };
}

function time(seconds: number): string {
  const at = new Date(seconds * 1000);
  return `${at.getHours().toString().padStart(2, "0")}:${at.getMinutes().toString().padStart(2, "0")}`;
}

function date(seconds: number): string {
  return new Date(seconds * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short" });
}

function top(props: ChartProps, most: number | null): number {
  const highest = Math.max(most ?? 0, 0);
  // A limit far above what is used would press the line to the floor.
  if (props.limit !== undefined && props.limit <= highest * 4) return Math.max(props.limit, highest) * 1.08;
  return Math.max(highest * 1.15, props.least ?? 1);
}

function drawLimit(plot: uPlot, limit: number | undefined, colour: string): void {
  const most = plot.scales.y?.max;
  if (limit === undefined || most === undefined || limit > most) return;
  const y = plot.valToPos(limit, "y", true);
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = colour;
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.restore();
}

/** Tells every graph where the pointer is; their titles show the values there. */
function readOut() {
  return (plot: uPlot) => {
    const at = plot.cursor.idx;
    pointed.value = at === null || at === undefined ? undefined : plot.data[0][at];
  };
}
