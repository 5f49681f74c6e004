// The latencies of the last hour as heat maps, and the timeline of the last days. The data comes from /history.

import { itemTable } from "./dialogs.js";
import { shape } from "./plots.js";
import { count, duration, element, label, seconds, text } from "./words.js";

/** Number of minutes in a heat map. */
const MINUTES = 60;
/** Minimum number of rows of a heat map. */
const MIN_ROWS = 5;

/** A heat map with a column for each minute and a row for each range of latencies. A darker cell has more latencies. */
export class HeatMap {
  #svg = shape("svg", { preserveAspectRatio: "none", class: "heat", role: "img" });
  #note = element("p", "axis quiet");
  #drawn = { minutes: [], bounds: [], rows: [] };

  constructor(parent, title, unit) {
    [this.title, this.unit] = [title, unit];
    const figure = element("article", "tile");
    figure.append(element("h3", "", title), this.#svg, this.#note);
    parent.append(figure);
    this.#svg.addEventListener("pointermove", (event) => this.#describe(event));
    this.#svg.addEventListener("pointerleave", () => this.#describe(null));
  }

  /** `minutes`: the numbers of latencies of each minute by bucket. `bounds`: the upper bounds of the buckets. */
  draw(minutes, bounds) {
    const used = minutes.flatMap((counts) => counts.flatMap((times, bucket) => (times > 0 ? [bucket] : [])));
    const first = Math.max(0, Math.min(...used, bounds.length - MIN_ROWS + 1));
    const last = Math.max(first + MIN_ROWS - 1, ...used);
    const rows = Array.from({ length: last - first + 1 }, (_, index) => last - index);
    const most = Math.max(1, ...minutes.flat());
    this.#svg.setAttribute("viewBox", `0 0 ${MINUTES} ${rows.length}`);
    this.#svg.replaceChildren();
    minutes.forEach((counts, minute) => rows.forEach((bucket, y) => {
      if (counts[bucket] === 0) return;
      const x = MINUTES - minutes.length + minute;
      // With the square root, cells with few latencies stay visible beside cells with many.
      const opacity = (0.15 + 0.85 * Math.sqrt(counts[bucket] / most)).toFixed(2);
      this.#svg.append(shape("rect", { x, y, width: 1, height: 1, "fill-opacity": opacity }));
    }));
    this.#drawn = { minutes, bounds, rows };
    this.#svg.setAttribute("aria-label", `${this.title} of the last hour, from ${this.#range(first)} to ${this.#range(last)}`);
    this.#describe(null);
  }

  #range(bucket) {
    const { bounds } = this.#drawn;
    const from = bucket === 0 ? "0" : seconds(bounds[bucket - 1]);
    return bucket < bounds.length ? `${from} – ${seconds(bounds[bucket])}` : `above ${from}`;
  }

  /** Shows the range of the map, or the cell below the pointer. */
  #describe(event) {
    const { minutes, rows } = this.#drawn;
    if (rows.length === 0) return;
    if (event === null) {
      const ends = `bottom ${this.#range(rows.at(-1))}, top ${this.#range(rows[0])}`;
      this.#note.replaceChildren(element("span", "", `−${MINUTES} min`), element("span", "", ends));
      return;
    }
    const { left, top, width, height } = this.#svg.getBoundingClientRect();
    const cell = (at, length, size) => Math.min(Math.max(Math.floor((at / length) * size), 0), size - 1);
    const ago = MINUTES - 1 - cell(event.clientX - left, width, MINUTES);
    const bucket = rows[cell(event.clientY - top, height, rows.length)];
    const times = minutes[minutes.length - 1 - ago]?.[bucket] ?? 0;
    const when = ago === 0 ? "this minute" : `${ago} min ago`;
    this.#note.replaceChildren(element("span", "", `${when}, ${this.#range(bucket)}`), element("span", "", `${count(times)} ${this.unit}`));
  }
}

/** Time that the timeline shows before and after a selected moment, in seconds. */
const AROUND = 1800;
/** Number of last marks that the timeline lists if no moment is selected. */
const MAX_LISTED = 12;
const [WIDTH, HEIGHT] = [1000, 24];
const LEVELS = { critical: "critical", warning: "warning" };

const CLOCK = { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" };
const clock = (time) => new Date(time * 1000).toLocaleString("en-GB", CLOCK);
/** The value of the input for a time in ms since 1970. */
const local = (ms) => new Date(ms - new Date(ms).getTimezoneOffset() * 60_000).toISOString().slice(0, 16);

const MARK_COLUMNS = [
  ["Begin", (mark) => clock(mark.began)],
  ["Lasted", lasted],
  ["What", (mark) => label(mark.kind)],
  ["Backend", (mark) => text(mark.backend)],
  ["Name", markName],
  ["Reason", (mark) => mark.reason],
];

function lasted(mark) {
  if (mark.holds) return "holds";
  if (mark.ended === null) return "end unknown";
  return mark.ended === mark.began ? "" : duration(mark.ended - mark.began);
}

/** The name of a mark. The name of a verdict links to its runbook. */
function markName(mark) {
  if (mark.kind !== "verdict") return mark.name;
  return Object.assign(element("a", "", label(mark.name)), { href: `/runbooks#${encodeURIComponent(mark.name)}` });
}

/** The timeline of verdicts, drains, reloads, deploys and starts. */
export class Timeline {
  #marks = [];
  /** The selected moment, in seconds since 1970. `null`: now. */
  #at = null;
  #input = Object.assign(element("input"), { type: "datetime-local", id: "at" });
  #svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "strip", role: "img" });
  #axis = element("p", "axis quiet");
  #frame = element("div", "frame");
  #empty = element("p", "empty");

  constructor(section) {
    const line = element("div", "title");
    const head = Object.assign(element("h2", "", "Timeline"), { id: "timeline-title" });
    section.setAttribute("aria-labelledby", head.id);
    const name = Object.assign(element("label", "", "Look at"), { htmlFor: this.#input.id });
    const now = Object.assign(element("button", "", "Now"), { type: "button" });
    this.#input.addEventListener("change", () => (location.hash = new URLSearchParams({ at: this.#input.value })));
    now.addEventListener("click", () => {
      history.replaceState(null, "", location.pathname);
      this.look(null);
    });
    line.append(head, name, this.#input, now);
    this.#frame.tabIndex = 0;
    section.append(line, this.#svg, this.#axis, this.#frame);
  }

  /** Shows a moment: a local time such as 2026-11-28T14:03, or a time with its zone. `null`: now. */
  look(moment) {
    const ms = moment === null ? NaN : Date.parse(moment);
    this.#at = Number.isFinite(ms) ? ms / 1000 : null;
    this.#input.value = this.#at === null ? "" : local(ms);
    this.update(this.#marks);
  }

  update(marks) {
    this.#marks = marks;
    const now = Date.now() / 1000;
    const at = this.#at;
    const from = at === null ? Math.min(now - 2 * AROUND, ...marks.map((mark) => mark.began)) : at - AROUND;
    const to = at === null ? now : at + AROUND;
    const end = (mark) => (mark.holds ? now : (mark.ended ?? mark.began));
    const shown = marks.filter((mark) => mark.began <= to && end(mark) >= from);
    const place = (time) => (Math.min(Math.max((time - from) / (to - from), 0), 1) * (WIDTH - 3));
    const bar = (begin, until, className) =>
      shape("rect", { x: place(begin), width: Math.max(3, place(until) - place(begin)), height: HEIGHT, class: className });
    this.#svg.replaceChildren(...shown.map((mark) => bar(mark.began, end(mark), LEVELS[mark.severity] ?? mark.kind)));
    if (at !== null) this.#svg.append(bar(at, at, "moment"));
    this.#svg.setAttribute("aria-label", `${shown.length} marks from ${clock(from)} to ${clock(to)}`);
    this.#axis.replaceChildren(element("span", "", clock(from)), element("span", "", at === null ? "now" : clock(to)));
    const listed = at === null ? shown.slice(-MAX_LISTED) : shown;
    this.#empty.textContent = `Nothing is known between ${clock(from)} and ${clock(to)}.`;
    const list = listed.length > 0 ? itemTable(MARK_COLUMNS, listed.toReversed(), { cellClass: "" }) : this.#empty;
    this.#frame.replaceChildren(list);
  }
}
