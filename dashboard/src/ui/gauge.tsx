/** How much is used: a line over the last minute, and bars towards a limit. */
import { part, type Share } from "../lib/fleet.ts";
import { count, duration, usd } from "../lib/format.ts";
import { SPARK_SLOTS } from "../lib/live.ts";
import { sparkPath } from "../lib/ring.ts";

const WIDTH = 64;
const HEIGHT = 20;

/** The last minute. `most` is the top of the field; where nothing limits it, the largest value is. */
export function Sparkline({
  values,
  most,
  kind,
}: {
  values: readonly number[];
  most?: number | undefined;
  kind: string;
}) {
  const top = most ?? Math.max(1, ...values) * 1.15;
  const path = sparkPath(values, top, SPARK_SLOTS, WIDTH, HEIGHT - 2);
  return (
    <svg
      class={`spark spark-${kind}`}
      viewBox={`0 -1 ${WIDTH} ${HEIGHT}`}
      preserveAspectRatio="none"
      aria-hidden="true"
    >
      {path === "" ? null : <path class="spark-area" d={`${path}V${HEIGHT - 1}H${areaLeft(values.length)}Z`} />}
      <path class="spark-line" d={path} />
    </svg>
  );
}

function areaLeft(length: number): string {
  return (WIDTH - (length - 1) * (WIDTH / (SPARK_SLOTS - 1))).toFixed(1);
}

/** A bar towards a limit. An SVG, since its width is data and the page allows no inline style. */
export function Bar({ value, label }: { value: number; label: string }) {
  const tone = value >= 0.95 ? "full" : value >= 0.8 ? "high" : "fine";
  return (
    <svg class={`bar bar-${tone}`} viewBox="0 0 100 4" preserveAspectRatio="none" role="img" aria-label={label}>
      <rect class="bar-back" width="100" height="4" />
      <rect class="bar-front" width={Math.max(value > 0 ? 1 : 0, value * 100).toFixed(1)} height="4" />
    </svg>
  );
}

/** An amount of a budget in its own unit. */
export function amount(label: string, value: number): string {
  if (label === "USD") return usd(value);
  if (label === "CPU time") return duration(value);
  return count(value);
}

export function BudgetBar({ share }: { share: Share }) {
  const text = `${share.label}: ${amount(share.label, share.used)} of ${amount(share.label, share.of)}`;
  return (
    <span class="budget" title={text}>
      <span class="budget-label">{share.label}</span>
      <Bar value={part(share)} label={text} />
      <span class="budget-value num">{Math.round(part(share) * 100)} %</span>
    </span>
  );
}
