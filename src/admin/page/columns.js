// The columns of the three tables.

import { bar, fill } from "./plots.js";
import { count, element, number, percent, seconds, text } from "./words.js";

const figure = (name, title, value, format, more = {}) => ({
  name, title, className: "figure", first: "down", value, text: (item) => format(value(item)), ...more,
});
/** A bar for a ratio, with the percentage as text. */
const share = (name, title, value, warns, hint) => ({
  name, title, hint, className: "figure bars", first: "down", value,
  make: (cell) => cell.append(bar(), element("span")),
  show: (cell, item) => {
    fill(cell.firstChild, value(item), warns);
    cell.lastChild.textContent = percent(value(item));
  },
});

// In this file a `replica` is an entry of `replicas` in /streams: one backend.

const BREAKERS = {
  resting: ["warn", "resting", "It answered 503 (full or paused) a moment ago"],
  half_open: ["warn", "half open", "It failed requests. The circuit breaker sends one request at a time"],
  open: ["warn", "half open", "It failed requests. The circuit breaker sends the next request as a trial"],
};

/** The state of a backend: a CSS class, a label and a hint. */
function stateOf(replica) {
  switch (replica.state) {
    case "drained":
      return ["drained", replica.in_flight > 0 ? "draining" : "drained"];
    case "zero_weight":
      return ["drained", "weight 0", "Its weight is 0: it gets no new requests"];
    case "ejected":
      return replica.up
        ? ["warn", "panic", "It is ejected, and gets requests because too many backends are ejected (panic mode)"]
        : ["bad", "ejected", "It failed requests. The circuit breaker sends it no requests"];
    case "available":
      if (replica.breaker !== "closed") return BREAKERS[replica.breaker] ?? ["warn", replica.breaker];
      return replica.stalled > 0 ? ["warn", "stalls", `${replica.stalled} of its streams are stalled`] : ["good", "up"];
    default:
      return [replica.state === "down" ? "bad" : "drained", replica.state, replica.reason];
  }
}

/** Whether a backend gets new requests. */
export const acceptsRequests = (replica) => replica.up;

const chip = (name, title, state, more = {}) => ({
  name, title, value: (item) => state(item)[1],
  make: (cell) => cell.append(element("span", "chip")),
  show: (cell, item) => {
    const [className, label, hint] = state(item);
    cell.firstChild.className = `chip ${className}`;
    cell.firstChild.textContent = label;
    cell.title = hint ?? "";
  },
  ...more,
});

/** A text that may be cut; its tooltip has all of it. */
const long = (name, title, value, className = "name") => ({
  name, title, className, value,
  show: (cell, item) => {
    const content = text(value(item));
    if (cell.textContent !== content) [cell.textContent, cell.title] = [content, content];
  },
});

/** Columns of the backends. `drain` gets the backend of the button. */
export const backendColumns = (drain) => [
  long("name", "Backend", (replica) => replica.name, "name lead"),
  chip("health", "State", (replica) => {
    const [className, label, hint] = stateOf(replica);
    return [className, label, hint ?? replica.url];
  }),
  share("kv", "KV cache", (replica) => replica.kv_usage, true, "KV usage"),
  figure("waiting", "Queue", (replica) => replica.waiting, count, { hint: "Requests that wait in the engine" }),
  figure("running", "Running", (replica) => replica.running, count, { hint: "Requests that run in the engine" }),
  figure("in_flight", "In flight", (replica) => replica.in_flight, count, { hint: "Requests of this gateway at the backend" }),
  share("share", "Share", (replica) => replica.share, false,
    "Share of the requests that ended in the last minute or are in flight"),
  figure("ttft", "TTFT", (replica) => replica.ttft_seconds, seconds, { hint: "Recent mean time to the first output" }),
  {
    ...figure("age", "Scrape age", (replica) => replica.sample_age_seconds, seconds,
      { hint: "Time since the last successful scrape" }),
    show: (cell, replica) => {
      cell.textContent = seconds(replica.sample_age_seconds);
      cell.classList.toggle("late", replica.sample_age_seconds > 10 || replica.metrics_error !== null);
      cell.title = replica.metrics_error ? `scrape failed: ${replica.metrics_error}` : "";
    },
  },
  {
    name: "drain", title: "Drain", className: "action", value: (replica) => (replica.drained ? 1 : 0),
    make: (cell) => {
      const button = element("button");
      button.type = "button";
      button.tabIndex = -1;
      button.addEventListener("click", () => drain(button.replica));
      cell.append(button);
    },
    show: (cell, replica) => {
      const button = cell.firstChild;
      button.replica = replica;
      button.textContent = replica.drained ? "Undrain" : "Drain";
      button.disabled = replica.health === "leaving";
      button.setAttribute("aria-label", `${button.textContent} ${replica.name}`);
    },
  },
];

const PHASES = { prefill: "info", decode: "good", stalled: "bad", held: "warn", ending: "drained" };

export const streamColumns = [
  long("request_id", "Request", (stream) => stream.request_id, "name lead id"),
  chip("phase", "Phase", (stream) => [PHASES[stream.phase] ?? "drained", stream.phase]),
  figure("age", "Age", (stream) => stream.age_seconds, seconds, { hint: "Time since the request head" }),
  figure("tokens", "Tokens", (stream) => stream.tokens, count),
  figure("silence", "Last output", (stream) => stream.silence_seconds, seconds, { hint: "Time since the last output" }),
  long("replica", "Backend", (stream) => stream.replica),
  long("model", "Model", (stream) => stream.model),
  { ...long("tenant", "Tenant", (stream) => stream.tenant), optional: true },
];

const OUTCOMES = { ok: "good", cancelled: "drained" };

/** Columns of the ended requests. `link` returns the URL of a trace, or null. */
export const endedColumns = (link) => [
  long("request_id", "Request", (request) => request.request_id, "name lead id"),
  chip("outcome", "Outcome", (request) => [OUTCOMES[request.outcome] ?? "bad", request.outcome]),
  // When sorted by this column, slow requests are first.
  chip("slow", "Slow", (request) => [request.slow ? "warn" : "none", request.slow ?? "no"],
    { value: (request) => request.slow, hint: "Slow cause" }),
  figure("ttft", "TTFT", (request) => request.ttft_seconds, seconds),
  figure("duration", "Duration", (request) => request.duration_seconds, seconds),
  figure("tokens", "Tokens", (request) => request.output_tokens, number),
  figure("age", "Ended", (request) => request.age_seconds, seconds, { first: "up", hint: "Time since the end of the request" }),
  long("replica", "Backend", (request) => request.replica),
  long("model", "Model", (request) => request.model),
  { ...long("tenant", "Tenant", (request) => request.tenant), optional: true },
  {
    name: "trace", title: "Trace", className: "id", optional: true, value: (request) => request.trace_id,
    show: (cell, request) => {
      const [id, url] = [text(request.trace_id), link(request.trace_id)];
      if (cell.dataset.id === id && cell.dataset.url === String(url)) return;
      [cell.dataset.id, cell.dataset.url] = [id, String(url)];
      cell.replaceChildren(url ? element("a", "", id.slice(0, 8)) : element("span", "", id.slice(0, 8)));
      cell.title = id;
      if (!url) return;
      Object.assign(cell.firstChild, { href: url, target: "_blank", rel: "noreferrer" });
    },
  },
];
