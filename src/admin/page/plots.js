// Small plots of the last minute of one value, as SVG.

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = [120, 28];
const MAX_POINTS = 60;

/** The last values of one quantity. */
export class Series {
  #values = [];

  push(value) {
    this.#values.push(Number.isFinite(value) ? value : null);
    if (this.#values.length > MAX_POINTS) this.#values.shift();
  }

  get values() {
    return this.#values;
  }
}

function shape(tag, attributes) {
  const created = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) created.setAttribute(name, value);
  return created;
}

/** An empty plot. */
export function plot(className) {
  const svg = shape("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: className,
    "aria-hidden": "true",
  });
  svg.append(shape("path", { class: "area" }), shape("path", { class: "line" }));
  return svg;
}

/** Draws values into a plot. The newest value is at the right edge, and 0 is at the bottom. */
export function draw(svg, values, top) {
  const max = top ?? Math.max(1e-9, ...values.map((value) => value ?? 0));
  const point = (value, index) => {
    const x = WIDTH - (values.length - 1 - index) * (WIDTH / (MAX_POINTS - 1));
    const y = HEIGHT - 2 - (Math.min(value, max) / max) * (HEIGHT - 4);
    return `${x.toFixed(1)},${y.toFixed(1)}`;
  };
  // An unknown value is a gap.
  const runs = [[]];
  values.forEach((value, index) => {
    if (value === null) runs.push([]);
    else runs.at(-1).push(point(value, index));
  });
  const drawn = runs.filter((run) => run.length > 1);
  const line = drawn.map((run) => `M${run.join("L")}`).join("");
  const down = (run) => {
    const x = (coordinates) => coordinates.split(",")[0];
    return `M${x(run[0])},${HEIGHT}L${run.join("L")}L${x(run.at(-1))},${HEIGHT}Z`;
  };
  svg.querySelector(".line").setAttribute("d", line);
  svg.querySelector(".area").setAttribute("d", drawn.map(down).join(""));
}

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
