// The columns of the tables.

import { bar, fill } from "./plots.js";
import { commonEnd, count, duration, element, label, number, percent, seconds, showName, target, text } from "./words.js";

const figure = (name, title, value, format, more = {}) => ({
  name, title, className: "figure", first: "down", value, text: (item) => format(value(item)), ...more,
});
/** A column of numbers. A cell is highlighted while `isMarked`, and has the text of `tooltip`. */
const marked = (name, title, value, format, isMarked, hint, tooltip = () => "") => ({
  ...figure(name, title, value, format, { hint }),
  show: (cell, item) => {
    cell.textContent = format(value(item));
    cell.classList.toggle("late", isMarked(item));
    cell.title = tooltip(item);
  },
});
/** A column of bars for a ratio, with the percentage as text. A cell is highlighted while `isMarked`. */
const share = (name, title, value, warns, hint, isMarked = () => false) => ({
  name, title, hint, className: "bars", first: "down", value,
  make: (cell) => cell.append(bar(), element("span")),
  show: (cell, item) => {
    fill(cell.firstChild, value(item), warns);
    cell.lastChild.textContent = percent(value(item));
    cell.classList.toggle("late", isMarked(item));
  },
});

// In this file `backend` is one entry of `backends` in /streams.

const BREAKERS = {
  resting: ["warn", "resting", "It answered 503 (full or paused) a moment ago"],
  half_open: ["warn", "half open", "It failed requests. The circuit breaker sends one request at a time"],
  open: ["warn", "half open", "It failed requests. The circuit breaker sends the next request as a trial"],
};

/** The conditions of a backend, the most urgent first, with their class. */
const CONDITIONS = {
  down: "bad", ejected: "bad", failing: "bad", critical: "bad", drain_harms: "bad",
  slow: "warn", avoided: "warn", stalled: "warn", warning: "warn", excluded: "", ok: "",
};
const URGENCY = Object.keys(CONDITIONS);

/** The class of the row of a backend that needs attention, or "". */
export const backendLevel = (backend) => CONDITIONS[backend.condition] ?? "";

/** The state of a backend: a CSS class, a label and a hint. */
function stateOf(backend) {
  const reason = backend.condition_reason ?? backend.reason ?? undefined;
  switch (backend.state) {
    case "drained":
      return [backendLevel(backend) || "drained", backend.in_flight > 0 ? "draining" : "drained", drainHint(backend.drain)];
    case "zero_weight":
      return ["drained", "weight 0", "Its weight is 0: it gets no new requests"];
    case "ejected":
      return backend.up
        ? ["warn", "panic", "It is ejected, and gets requests because too many backends are ejected (panic mode)"]
        : ["bad", "ejected", "It failed requests. The circuit breaker sends it no requests"];
    case "available":
      if (backendLevel(backend)) return [backendLevel(backend), label(backend.condition), reason];
      if (backend.breaker !== "closed") return BREAKERS[backend.breaker] ?? ["warn", backend.breaker];
      return ["none", "up"];
    default:
      return [backend.state === "down" ? "bad" : "drained", label(backend.state), reason];
  }
}

/** The initiator, the start, the reason and the end of a drain. */
function drainHint(drain) {
  if (!drain) return undefined;
  const reason = drain.reason ? `: ${drain.reason}` : "";
  const left = typeof drain.remaining_seconds === "number" ? `, for ${duration(drain.remaining_seconds)} more` : "";
  return `Drained by ${drain.by} at ${drain.since}${left}${reason}`;
}

/** The state of the GPUs of a backend. */
function gpuHint(gpus) {
  const temperature = typeof gpus.max_temperature_celsius === "number" ? `, up to ${Math.round(gpus.max_temperature_celsius)} °C` : "";
  const clock = gpus.is_throttled ? ", a GPU lowers its clock because of its temperature or power supply" : "";
  return `${gpus.count} GPUs, ${duration(gpus.scrape_age_seconds)} ago${temperature}${clock}`;
}

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

/** A name that may be cut. If `href` returns a URL for the item, the name links to the details of the row. */
const long = (name, title, value, { href, ...more } = {}) => {
  let end = "";
  return {
    name, title, className: href ? "name lead" : "name", value,
    make: (cell) => cell.append(element(href ? "a" : "span", href ? "lead" : "")),
    prepare: (items) => (end = commonEnd(items.map((item) => text(value(item))))),
    show: (cell, item) => {
      showName(cell.firstChild, text(value(item)), end);
      if (href) cell.firstChild.href = href(item);
    },
    ...more,
  };
};

/** The name of a backend and, below it, the reason why the backend needs attention. */
const named = long("name", "Backend", (backend) => backend.name, { href: (backend) => target("backend", backend.name) });
const nameAndReason = {
  ...named,
  make: (cell) => {
    named.make(cell);
    cell.append(element("small", "why"));
  },
  show: (cell, backend) => {
    named.show(cell, backend);
    cell.lastChild.textContent = backendLevel(backend) ? (backend.condition_reason ?? "") : "";
  },
};

/** Whether a backend has a bad TTFT: it is slow, or routing avoids it because of its predicted TTFT. */
const isLate = (backend) => ["slow", "avoided"].includes(backend.condition);

/** Columns of the backends. `drain` is called with the backend whose button is pressed. */
export const backendColumns = (drain) => [
  nameAndReason,
  chip("health", "State", (backend) => {
    const [className, label, hint] = stateOf(backend);
    return [className, label, hint ?? backend.url];
  }, { order: (backend) => URGENCY.indexOf(backend.condition), hint: "Backends that need attention come first" }),
  marked("ttft", "TTFT", (backend) => backend.ttft_seconds, seconds, isLate,
    "Mean time to the first output of the streams that ended in the last minute"),
  marked("failed", "Failed", (backend) => backend.failed_share, percent, (backend) => backend.failed_attempts > 0,
    "Share of the attempts that failed, of the requests that ended in the last minute"),
  marked("client_errors", "4xx", (backend) => backend.client_error_share, percent, (backend) => backend.client_error_share > 0,
    "Share of the attempts that were answered with 4xx; the tooltip of a value has the statuses",
    (backend) => Object.entries(backend.client_errors).map(([status, times]) => `${status}: ${times}`).join(", ")),
  figure("waiting", "Queue", (backend) => backend.waiting, count, { hint: "Requests that wait in the engine" }),
  figure("running", "Running", (backend) => backend.running, count, { hint: "Requests that run in the engine" }),
  figure("in_flight", "In flight", (backend) => backend.in_flight, count, { hint: "Requests of this gateway at the backend" }),
  share("kv", "KV cache", (backend) => backend.kv_usage, true, "KV usage"),
  share("share", "Share", (backend) => backend.share, false,
    "Share of the requests that ended in the last minute or are in flight", (backend) => backend.condition === "avoided"),
  {
    ...long("model", "Models", (backend) => backend.models.join(", ")), optional: true,
    isUseful: (backends) => new Set(backends.map((backend) => backend.models.join())).size > 1,
  },
  marked("age", "Scrape age", (backend) => backend.scrape_age_seconds, seconds,
    (backend) => backend.scrape_age_seconds > 10 || backend.scrape_error !== null, "Time since the last successful scrape",
    (backend) => (backend.scrape_error ? `scrape failed: ${backend.scrape_error}` : "")),
  {
    ...chip("events", "KV events", (backend) => EVENT_STATES[backend.kv_events] ?? ["", backend.kv_events ?? ""]),
    value: (backend) => backend.kv_events, optional: true,
  },
  {
    ...marked("gpu", "GPU", ({ gpus }) => gpus?.utilization, percent,
      ({ gpus }) => gpus?.is_throttled === true || gpus?.scrape_age_seconds > 30, "Mean utilisation of its GPUs",
      ({ gpus }) => (gpus ? gpuHint(gpus) : "")),
    optional: true,
  },
  figure("gpu_memory", "GPU memory", (backend) => backend.gpus?.memory_usage, percent, { hint: "Used share of the memory of its GPUs", optional: true }),
  {
    name: "drain", title: "Drain", isTitleHidden: true, className: "action", value: (backend) => (backend.drained ? 1 : 0),
    make: (cell) => {
      const button = element("button");
      button.type = "button";
      button.tabIndex = -1;
      button.addEventListener("click", () => drain(button.backend));
      cell.append(button);
    },
    show: (cell, backend) => {
      const button = cell.firstChild;
      button.backend = backend;
      button.textContent = backend.drained ? "Undrain" : "Drain";
      button.disabled = backend.health === "leaving";
      button.setAttribute("aria-label", `${button.textContent} ${backend.name}`);
    },
  },
];

/** The states of KV events. */
const EVENT_STATES = {
  exact: ["good", "exact", "The events tell all blocks of the prefix cache"],
  from_here: ["", "from here", "The events tell the blocks since some moment"],
  gap: ["warn", "gap", "Events are missing: the gateway estimates the cache"],
  off: ["warn", "off", "No events are received: the gateway estimates the cache"],
};

const PHASES = { no_output: "info", decode: "none", stalled: "bad", write_stalled: "warn", closing: "none" };

/** The id of a request. Its first characters suffice to distinguish requests and to find one. */
const requestId = {
  name: "request_id", title: "Request", className: "name lead id", value: (request) => request.request_id,
  make: (cell) => cell.append(element("a", "lead")),
  show: (cell, request) => {
    if (cell.title === request.request_id) return;
    [cell.firstChild.textContent, cell.title] = [request.request_id.slice(0, 8), request.request_id];
    cell.firstChild.href = target("request", request.request_id);
  },
};

export const streamColumns = [
  requestId,
  chip("phase", "Phase", (stream) => [PHASES[stream.phase] ?? "drained", label(stream.phase)]),
  figure("age", "Age", (stream) => stream.age_seconds, seconds, { hint: "Time since the request head" }),
  figure("tokens", "Tokens", (stream) => stream.tokens, count),
  figure("silence", "Last output", (stream) => stream.last_output_age_seconds, seconds, { hint: "Time since the last output" }),
  figure("prompt", "Prompt tokens", (stream) => stream.prompt_tokens, number, { hint: "Estimated prompt tokens" }),
  { ...long("tenant", "Tenant", (stream) => stream.tenant), optional: true },
  long("client", "Client", (stream) => stream.client),
  long("backend", "Backend", (stream) => stream.backend),
  long("model", "Model", (stream) => stream.model),
];

/** The name of a client: tenant and key, or the address. */
export const clientName = (client) => (client.tenant === null ? text(client.address) : `${client.tenant} / ${client.key}`);

export const clientColumns = [
  long("name", "Client", clientName, { className: "name lead" }),
  share("share", "Share", (client) => client.share, false, "The largest of its shares of prompt tokens, open streams and requests"),
  { name: "of", title: "of", value: (client) => client.share_of, text: (client) => client.share_of },
  figure("open", "Open streams", (client) => client.open_streams, count),
  figure("requests", "Ended", (client) => client.requests, count, { hint: "Requests that ended in the last minute" }),
  figure("prompt", "Prompt tokens", (client) => client.prompt_tokens, number, { hint: "Of the ended requests and of the open streams" }),
  figure("output", "Output tokens", (client) => client.output_tokens, number, { hint: "Of the ended requests" }),
  marked("refused", "Refused", (client) => client.refused, count, (client) => client.refused > 0, "Requests that the gateway refused"),
];

/** Columns of the models or of the tenants. `length` returns the seconds of the last minute. */
export const groupColumns = (title, length) => {
  const rate = (times) => (length() > 0 ? times / length() : null);
  const shareOf = (name, title, hint) => marked(name, title, (group) => (group.requests > 0 ? group[name] / group.requests : null),
    percent, (group) => group[name] > 0, hint);
  return [
    long("name", title, (group) => group.name, { href: (group) => target("filter", group.name) }),
    figure("requests", "Requests/s", (group) => rate(group.requests), number, { hint: "Requests that ended in the last minute, per second" }),
    figure("ttft", "TTFT", (group) => group.ttft_seconds, seconds, { hint: "Mean time to the first output, as clients observe it" }),
    shareOf("failed", "Failed", "Share of the requests that failed"),
    shareOf("client_errors", "4xx", "Share of the responses with a status of 4xx that are not refusals"),
    shareOf("refused", "Refused", "Share of the requests that the gateway refused"),
    figure("disconnects", "Disconnected", (group) => group.client_disconnects, count, { hint: "Requests whose client disconnected" }),
    figure("prompt", "Prompt tokens/s", (group) => rate(group.prompt_tokens), number),
    figure("output", "Output tokens/s", (group) => rate(group.output_tokens), number),
    figure("open", "Open streams", (group) => group.open_streams, count),
  ];
};

const OUTCOMES = { ok: "none", cancelled: "drained", client_error: "warn" };

/** Columns of the ended requests. `link` returns the URL of the trace of a request, or null. */
export const endedColumns = (link) => [
  requestId,
  chip("outcome", "Outcome", (request) => [OUTCOMES[request.outcome] ?? "bad", label(request.outcome)]),
  // Sorting by this column puts slow requests first.
  chip("slow", "Slow", (request) => [request.slow_cause ? "warn" : "none", label(request.slow_cause ?? "")],
    { value: (request) => request.slow_cause, hint: "Slow cause" }),
  figure("ttft", "TTFT", (request) => request.ttft_seconds, seconds),
  figure("answer", "First answer", (request) => request.first_answer_seconds, seconds,
    { hint: "Time to the first output that is not reasoning", optional: true }),
  figure("duration", "Duration", (request) => request.duration_seconds, seconds),
  figure("tokens", "Tokens", (request) => request.output_tokens, number),
  figure("age", "Ended ago", (request) => request.age_seconds, seconds, { first: "up", hint: "Time since the end of the request" }),
  long("backend", "Backend", (request) => request.backend),
  { ...long("tenant", "Tenant", (request) => request.tenant), optional: true },
  long("client", "Client", (request) => request.client),
  long("model", "Model", (request) => request.model),
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
