// Small SVG plots of one value over the last hour.

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = [240, 28];
/** Minimum number of intervals of a plot, so that the first ones are not stretched over its width. */
const MIN_POINTS = 30;

/** Creates an SVG element. */
export function shape(tag, attributes) {
  const created = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) created.setAttribute(name, value);
  return created;
}

/**
 * A plot with an axis. Its methods: `draw(values, seconds, format, top)` draws values of intervals of this length,
 * the newest at the right edge and 0 at the bottom. The axis shows the value below the pointer.
 */
export class Plot {
  #svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "spark", role: "img" });
  #area = shape("path", { class: "area" });
  #line = shape("path", { class: "line" });
  #cursor = shape("path", { class: "cursor" });
  #left = document.createElement("span");
  #right = document.createElement("span");
  #drawn = { values: [], seconds: 1, format: String };
  #pointer = null;

  /** `shown`: the name for the axis label, if the plot shows another value than its tile. */
  constructor(tile, name, shown) {
    this.name = name;
    this.shown = shown ? `${shown} ` : "";
    this.#svg.append(this.#area, this.#line, this.#cursor);
    const axis = document.createElement("p");
    axis.className = "axis quiet";
    axis.append(this.#left, this.#right);
    tile.append(this.#svg, axis);
    this.#svg.addEventListener("pointermove", (event) => {
      const { left, width } = this.#svg.getBoundingClientRect();
      this.#pointer = (event.clientX - left) / width;
      this.#label();
    });
    this.#svg.addEventListener("pointerleave", () => {
      this.#pointer = null;
      this.#label();
    });
  }

  draw(values, seconds, format, top = 0) {
    this.#drawn = { values, seconds, format };
    const max = Math.max(1e-9, top, ...values.map((value) => value ?? 0));
    const step = WIDTH / (Math.max(values.length, MIN_POINTS) - 1);
    const point = (value, index) => {
      const x = WIDTH - (values.length - 1 - index) * step;
      const y = HEIGHT - 1 - (value / max) * (HEIGHT - 3);
      return [x, y].map((coordinate) => coordinate.toFixed(1)).join(",");
    };
    // An unknown value is a gap.
    const runs = [[]];
    values.forEach((value, index) => {
      if (value === null) runs.push([]);
      else runs.at(-1).push(point(value, index));
    });
    // A value between two gaps is drawn as a short line.
    const drawn = runs.filter((run) => run.length > 0).map((run) => (run.length > 1 ? run : [run[0], shift(run[0], step / 2)]));
    this.#line.setAttribute("d", drawn.map((run) => `M${run.join("L")}`).join(""));
    const down = (run) => `M${x(run[0])},${HEIGHT}L${run.join("L")}L${x(run.at(-1))},${HEIGHT}Z`;
    this.#area.setAttribute("d", drawn.map(down).join(""));
    this.#svg.classList.toggle("zero", values.every((value) => !value));
    this.#label();
  }

  /** Shows the axis, or the value below the pointer. */
  #label() {
    const { values, seconds, format } = this.#drawn;
    const count = Math.max(values.length, MIN_POINTS);
    const known = values.filter((value) => value !== null);
    const highest = known.length > 0 ? format(Math.max(...known)) : "–";
    const ago = (intervals) => (intervals === 0 ? "now" : `${time(intervals * seconds)} ago`);
    this.#svg.setAttribute("aria-label", `${this.name}, last ${time(values.length * seconds)}: maximum ${highest}`);
    if (this.#pointer === null) {
      this.#cursor.setAttribute("d", "");
      this.#left.textContent = `−${time((count - 1) * seconds)}`;
      this.#right.textContent = `${this.shown}max ${highest}`;
      return;
    }
    const back = Math.round((1 - Math.min(Math.max(this.#pointer, 0), 1)) * (count - 1));
    const value = values[values.length - 1 - back];
    this.#cursor.setAttribute("d", `M${(WIDTH * (1 - back / (count - 1))).toFixed(1)},0V${HEIGHT}`);
    this.#left.textContent = ago(back);
    this.#right.textContent = typeof value === "number" ? format(value) : "–";
  }
}

const x = (point) => point.split(",")[0];
const shift = (point, by) => `${(Number(x(point)) + by).toFixed(1)},${point.split(",")[1]}`;
const time = (seconds) => (seconds < 120 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`);

/** A bar for a ratio from 0 to 1. */
export function bar() {
  const svg = shape("svg", {
    viewBox: "0 0 100 6", preserveAspectRatio: "none", class: "share", "aria-hidden": "true",
  });
  svg.append(
    shape("rect", { class: "whole", width: 100, height: 6, rx: 3 }),
    shape("rect", { class: "part", width: 0, height: 6, rx: 3 }),
  );
  return svg;
}

/** Sets the ratio of a bar. With `warns`, the bar is amber from 0.85 and red from 0.95. */
export function fill(svg, share, warns) {
  const known = Number.isFinite(share) ? Math.min(Math.max(share, 0), 1) : 0;
  const part = svg.querySelector(".part");
  part.setAttribute("width", (known * 100).toFixed(1));
  const level = !warns || known < 0.85 ? "fine" : known < 0.95 ? "high" : "full";
  part.setAttribute("class", `part ${level}`);
}
