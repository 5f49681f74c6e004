// The columns of the three tables.

import { bar, fill } from "./plots.js";
import { count, element, number, percent, seconds, text } from "./words.js";

const figure = (name, title, of, words, more = {}) => ({
  name, title, className: "figure", first: "down", value: of, text: (item) => words(of(item)), ...more,
});
/** A bar and its share in words. */
const share = (name, title, of, warns, hint) => ({
  name, title, hint, className: "figure bars", first: "down", value: of,
  make: (cell) => cell.append(bar(), element("span")),
  show: (cell, item) => {
    fill(cell.firstChild, of(item), warns);
    cell.lastChild.textContent = percent(of(item));
  },
});

const BREAKERS = {
  resting: ["warn", "resting", "It was full or paused a moment ago"],
  half_open: ["warn", "on trial", "It failed requests, and gets one at a time (breaker half open)"],
  open: ["warn", "on trial", "It failed requests, and gets the next one (breaker open)"],
};

/** How a replica is: a class for its colour, one word, and more of it. */
function standing(replica) {
  switch (replica.state) {
    case "drained":
      return ["drained", replica.in_flight > 0 ? "draining" : "drained"];
    case "zero_weight":
      return ["drained", "weight 0", "It is configured to get nothing new"];
    case "ejected":
      return replica.up
        ? ["warn", "panic", "It failed requests, and gets some: too many replicas are ejected"]
        : ["bad", "ejected", "It failed requests, and gets none (breaker open)"];
    case "available":
      if (replica.breaker !== "closed") return BREAKERS[replica.breaker] ?? ["warn", replica.breaker];
      return replica.stalled > 0 ? ["warn", "stalls", `${replica.stalled} of its streams are silent`] : ["good", "up"];
    default:
      return [replica.state === "down" ? "bad" : "drained", replica.state, replica.reason];
  }
}

/** Whether it is sent new requests. */
export const takes = (replica) => replica.up;

const chip = (name, title, of, more = {}) => ({
  name, title, value: (item) => of(item)[1],
  make: (cell) => cell.append(element("span", "chip")),
  show: (cell, item) => {
    const [className, words, hint] = of(item);
    cell.firstChild.className = `chip ${className}`;
    cell.firstChild.textContent = words;
    cell.title = hint ?? "";
  },
  ...more,
});

const long = (name, title, of, className = "name") => ({
  name, title, className, value: of,
  show: (cell, item) => {
    const words = text(of(item));
    if (cell.textContent !== words) [cell.textContent, cell.title] = [words, words];
  },
});

/** `drain` is told which replica its button is for. */
export const replicaColumns = (drain) => [
  long("name", "Replica", (replica) => replica.name, "name lead"),
  chip("health", "State", (replica) => {
    const [className, words, hint] = standing(replica);
    return [className, words, hint ?? replica.url];
  }),
  share("kv", "KV cache", (replica) => replica.kv_usage, true, "How full its KV cache is"),
  figure("waiting", "Queue", (replica) => replica.waiting, count, { hint: "Requests that wait in its engine" }),
  figure("running", "Running", (replica) => replica.running, count, { hint: "Requests that run in its engine" }),
  figure("in_flight", "In flight", (replica) => replica.in_flight, count, { hint: "Requests of this gateway at it" }),
  share("share", "Share", (replica) => replica.share, false,
    "Its part of the requests that ended in the last minute or are in flight"),
  figure("ttft", "TTFT", (replica) => replica.ttft_seconds, seconds, { hint: "Mean time to a first output lately" }),
  {
    ...figure("age", "Sample", (replica) => replica.sample_age_seconds, seconds,
      { hint: "How old is what it says of itself" }),
    show: (cell, replica) => {
      cell.textContent = seconds(replica.sample_age_seconds);
      cell.classList.toggle("late", replica.sample_age_seconds > 10 || replica.metrics_error !== null);
      cell.title = replica.metrics_error ? `the last look at its metrics failed: ${replica.metrics_error}` : "";
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
  figure("age", "Age", (stream) => stream.age_seconds, seconds, { hint: "Since the request came" }),
  figure("tokens", "Tokens", (stream) => stream.tokens, count),
  figure("silence", "Last chunk", (stream) => stream.silence_seconds, seconds, { hint: "Since the last output came" }),
  long("replica", "Replica", (stream) => stream.replica),
  long("model", "Model", (stream) => stream.model),
  { ...long("tenant", "Tenant", (stream) => stream.tenant), optional: true },
];

const OUTCOMES = { ok: "good", cancelled: "drained" };

/** `link` gives the page of a trace, if there is one. */
export const endedColumns = (link) => [
  long("request_id", "Request", (request) => request.request_id, "name lead id"),
  chip("outcome", "Outcome", (request) => [OUTCOMES[request.outcome] ?? "bad", request.outcome]),
  // Sorted by it, slow ones come first.
  chip("slow", "Slow", (request) => [request.slow ? "warn" : "none", request.slow ?? "no"],
    { value: (request) => request.slow, hint: "Why it was slow" }),
  figure("ttft", "TTFT", (request) => request.ttft_seconds, seconds),
  figure("duration", "Duration", (request) => request.duration_seconds, seconds),
  figure("tokens", "Tokens", (request) => request.output_tokens, number),
  figure("age", "Ended", (request) => request.age_seconds, seconds, { first: "up", hint: "Since it ended" }),
  long("replica", "Replica", (request) => request.replica),
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
