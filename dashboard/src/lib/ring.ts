/** The last few values of something, in a fixed piece of memory. */
export class Ring {
  readonly #values: Float64Array;
  #next = 0;
  #length = 0;

  constructor(most: number) {
    this.#values = new Float64Array(most);
  }

  get length(): number {
    return this.#length;
  }

  push(value: number): void {
    this.#values[this.#next] = value;
    this.#next = (this.#next + 1) % this.#values.length;
    this.#length = Math.min(this.#length + 1, this.#values.length);
  }

  /** The values, oldest first. */
  values(): number[] {
    const most = this.#values.length;
    const first = (this.#next - this.#length + most) % most;
    return Array.from({ length: this.#length }, (_, at) => this.#values[(first + at) % most] ?? 0);
  }
}

/** An SVG path through values, the newest at the right edge, in a field of `width` by `height` with 0 at the bottom. */
export function sparkPath(
  values: readonly number[],
  most: number,
  slots: number,
  width: number,
  height: number,
): string {
  if (values.length < 2) return "";
  const step = width / (slots - 1);
  const scale = most > 0 ? height / most : 0;
  const left = width - (values.length - 1) * step;
  const points = values.map((value, at) => {
    const y = height - Math.min(value, most) * scale;
    return `${(left + at * step).toFixed(1)} ${y.toFixed(1)}`;
  });
  return `M${points.join("L")}`;
}
