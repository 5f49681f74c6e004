// The live page: fetches /streams once a second and shows it.

import { acceptsRequests, backendColumns, endedColumns, streamColumns } from "./columns.js";
import { confirm, help, isOpen, requestToken, showDecision, showMessage } from "./dialogs.js";
import { Series, draw, plot } from "./plots.js";
import { Table } from "./tables.js";
import { Verdicts } from "./verdicts.js";
import { count, duration, element, number, percent, seconds } from "./words.js";

const INTERVAL_MS = 1000;
const TIMEOUT_MS = 5000;
/** Window of rates, in seconds. */
const RATE_WINDOW = 5;
const TOKEN_KEY = "tokenweir-admin-token";

const $ = (id) => document.getElementById(id);
const state = { paused: false, latest: null, samples: [], updated: null, withoutToken: false };

// === requests to the gateway

async function request(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  const headers = { ...options.headers, ...(token ? { authorization: `Bearer ${token}` } : {}) };
  const response = await fetch(path, {
    ...options, headers, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  if (response.status === 401) {
    pill("warn", "token required");
    const entered = await requestToken(token !== null);
    if (entered === "") {
      state.withoutToken = true;
      throw new Error("the admin token is required; reload the page to enter it");
    }
    sessionStorage.setItem(TOKEN_KEY, entered);
    return request(path, options);
  }
  return response;
}

async function refresh() {
  try {
    const response = await request("/streams");
    if (!response.ok) throw new Error(`/streams answered ${response.status}`);
    const live = await response.json();
    state.updated = Date.now();
    if (!state.paused) show(live);
    $("problem").hidden = true;
    document.body.classList.remove("stale");
  } catch (error) {
    showProblem(error);
  }
}

function showProblem(error) {
  const since = state.updated === null ? "" : ` for ${duration((Date.now() - state.updated) / 1000)}`;
  const shown = state.latest ? " The page shows the last data." : "";
  const cause = error.name === "TypeError" ? "the gateway does not answer" : error.message;
  const next = state.withoutToken ? "" : " The page retries every second.";
  $("problem").textContent = `No data${since}: ${cause}.${shown}${next}`;
  $("problem").hidden = false;
  document.body.classList.add("stale");
  $("pulse").textContent = "";
  pill("bad", "no data");
}

async function run() {
  for (;;) {
    if (!document.hidden && !state.withoutToken) await refresh();
    await new Promise((resolve) => setTimeout(resolve, INTERVAL_MS));
  }
}

// === tiles

const TILES = [
  {
    title: "Requests", unit: "/s", value: (live) => rate(live, "requests"), format: number,
    details: (live) => `${count(live.requests_in_flight)} in flight · ${count(waiting(live))} waiting`,
  },
  {
    title: "Output tokens", unit: "/s", value: (live) => rate(live, "output_tokens"), format: number,
    details: (live) => `${count(live.streams.count)} open streams`,
  },
  quantileTile("TTFT", "ttft"),
  quantileTile("ITL", "itl"),
  quantileTile("E2E", "e2e"),
  {
    title: "Failed", unit: "", format: percent, className: "failures", top: 1,
    value: ({ last_minute: minute }) => (minute.requests > 0 ? minute.failed / minute.requests : null),
    details: ({ last_minute: minute }) =>
      `${count(minute.failed)} of ${count(minute.requests)} · ${count(minute.client_disconnects)} disconnected`,
  },
  {
    title: "Refused", unit: "", format: percent, className: "failures", top: 1,
    value: ({ last_minute: minute }) => (minute.requests > 0 ? minute.refused / minute.requests : null),
    details: ({ last_minute: minute }) => `${count(minute.refused)} of ${count(minute.requests)}`,
  },
];

/** A tile with the median and its plot; p95 and p99 as text. */
function quantileTile(title, name) {
  const quantiles = (live) => live.last_minute[name];
  return {
    title: `${title}, p50`, unit: "", value: (live) => quantiles(live)?.p50 ?? null, format: seconds,
    details: (live) => `p95 ${seconds(quantiles(live)?.p95)} · p99 ${seconds(quantiles(live)?.p99)}`,
  };
}

for (const tile of TILES) {
  const article = element("article", `tile ${tile.className ?? ""}`);
  tile.figure = element("strong");
  tile.note = element("span", "quiet");
  tile.plot = plot("spark");
  tile.series = new Series();
  article.append(element("h2", "", tile.title), tile.figure, tile.note, tile.plot);
  $("tiles").append(article);
}

const waiting = (live) => live.queue.reduce((sum, entry) => sum + entry.waiting, 0);

/** The rate of a total over the last seconds. Before two samples exist, the mean of the last minute. */
function rate(live, name) {
  const first = state.samples.find((sample) => live.uptime_seconds - sample.uptime <= RATE_WINDOW + 0.5);
  const elapsed = live.uptime_seconds - (first?.uptime ?? live.uptime_seconds);
  if (elapsed < 0.5) {
    const { seconds: length } = live.last_minute;
    return length > 0 ? live.last_minute[name] / length : null;
  }
  return Math.max(0, live.totals[name] - first[name]) / elapsed;
}

function storeSample(live) {
  const { uptime_seconds: uptime, totals } = live;
  const last = state.samples.at(-1);
  // The gateway was restarted.
  if (last && last.uptime > uptime) state.samples = [];
  state.samples.push({ uptime, ...totals });
  state.samples = state.samples.filter((sample) => uptime - sample.uptime <= 2 * RATE_WINDOW);
}

// === the page

const verdicts = new Verdicts($("verdicts"));
const tables = {
  backends: new Table($("backends"), {
    id: "backends", title: "Backends", columns: backendColumns(drain), key: (backend) => backend.name,
    sort: { name: "name", order: "up" }, empty: "No backends.",
    onKey: (event, backend) => event.key === "d" && isPlain(event) && (drain(backend), true),
  }),
  streams: new Table($("streams"), {
    id: "streams", title: "Open streams", columns: streamColumns, key: (stream) => stream.number,
    sort: { name: "age", order: "down" }, empty: "No open streams.",
    onKey: (event, stream) => event.key === "Enter" && (openDecision(stream.request_id), true),
  }),
  ended: new Table($("ended"), {
    id: "ended", title: "Ended requests", columns: endedColumns(traceLink),
    key: (request) => request.number, sort: { name: "age", order: "up" },
    empty: "No ended requests.",
    onKey: (event, request) => {
      if (event.key === "Enter") return openDecision(request.request_id), true;
      const url = event.key === "t" && isPlain(event) && traceLink(request.trace_id);
      if (url) window.open(url, "_blank", "noreferrer");
      return Boolean(url);
    },
  }),
};

const isPlain = (event) => !event.ctrlKey && !event.metaKey && !event.altKey;

/** The class of the pill for each state of the gateway. */
const STATES = { ready: "good", degraded: "warn", shutting_down: "warn", refusing: "bad", down: "bad" };

function pill(className, label, reasons = []) {
  $("state").className = `pill ${className}`;
  $("state").textContent = [label, ...(reasons.length > 0 ? [reasons.join("; ")] : [])].join(": ");
  // The state is visible in the tab of the browser, too.
  document.title = `${label} – tokenweir`;
}

function show(live) {
  state.latest = live;
  storeSample(live);
  document.querySelector("main").hidden = false;
  pill(STATES[live.state] ?? "bad", live.state.replaceAll("_", " "), live.state_reasons);
  $("about").textContent = `${live.version} · ${live.policy} · up ${duration(live.uptime_seconds)}`;
  $("pulse").textContent = state.paused ? "paused" : "live";
  for (const tile of TILES) {
    const value = tile.value(live);
    const unit = value === null ? "" : tile.unit;
    tile.figure.replaceChildren(tile.format(value), element("small", "", unit));
    tile.note.textContent = tile.details(live);
    tile.series.push(value);
    draw(tile.plot, tile.series.values, tile.top);
  }
  verdicts.update(live.verdicts);
  tables.backends.update(live.backends);
  tables.streams.update(live.streams.oldest);
  tables.ended.update(live.ended);
  showNotes(live);
}

function showNotes(live) {
  const up = live.backends.filter(acceptsRequests).length;
  tables.backends.note = `${up} of ${live.backends.length} accept requests`;
  const phases = Object.entries(live.streams.phases).map(([name, streams]) => `${streams} ${name}`);
  const hidden = live.streams.count - live.streams.oldest.length;
  if (hidden > 0) phases.push(`the ${live.streams.oldest.length} oldest are listed`);
  tables.streams.note = phases.join(" · ");
  const slow = live.ended.filter((request) => request.slow_cause).length;
  tables.ended.note = `the last requests and the last slow requests · ${slow} slow`;
}

function traceLink(id) {
  const template = state.latest?.trace_ui;
  return id && template ? template.replaceAll("{trace_id}", encodeURIComponent(id)) : null;
}

// === actions

async function openDecision(id) {
  try {
    const response = await request(`/decisions/${encodeURIComponent(id)}`);
    const decision = await response.json();
    if (response.ok) showDecision(id, decision);
    else showMessage("Routing decision", `${decision.error}.`);
  } catch (error) {
    showMessage("Routing decision", `The request to the gateway failed: ${error.message}.`);
  }
}

async function drain(backend) {
  const verb = backend.drained ? "undrain" : "drain";
  const message = backend.drained
    ? `${backend.name} gets new requests again.`
    : `${backend.name} gets no new requests. Its ${count(backend.in_flight)} requests in flight continue.`;
  const title = backend.drained ? "Undrain this backend?" : "Drain this backend?";
  if (!(await confirm(title, message, backend.drained ? "Undrain" : "Drain"))) return;
  try {
    const response = await request(`/-/${verb}?backend=${encodeURIComponent(backend.name)}`, {
      method: "POST", headers: { "content-type": "application/json" },
    });
    if (!response.ok) showMessage(`The ${verb} failed`, await response.text());
    await refresh();
  } catch (error) {
    showMessage(`The ${verb} failed`, `${error.message}.`);
  }
}

function pause() {
  state.paused = !state.paused;
  $("pause").setAttribute("aria-pressed", String(state.paused));
  $("pause").textContent = state.paused ? "Resume" : "Pause";
  $("pulse").textContent = state.paused ? "paused" : "live";
}

const order = Object.values(tables);
const current = () => order.find((table) => table.section.contains(document.activeElement)) ?? order[0];
const KEYS = {
  "/": () => $("filter").focus(),
  "?": help,
  p: pause,
  s: () => current().sortByNext(),
  d: () => tables.backends.selected && drain(tables.backends.selected),
  1: () => order[0].focus(),
  2: () => order[1].focus(),
  3: () => order[2].focus(),
};

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || isOpen() || !isPlain(event)) return;
  const filter = $("filter");
  if (event.target === filter) {
    if (event.key === "Escape") filter.value = "";
    if (event.key === "Escape" || event.key === "Enter") current().focus();
    if (event.key === "Escape") filter.dispatchEvent(new Event("input"));
    return;
  }
  const action = KEYS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

for (const id of ["state", "pause", "help"]) $(id).hidden = false;
$("filter").addEventListener("input", (event) => {
  for (const table of order) table.filter = event.target.value;
});
$("pause").addEventListener("click", pause);
$("help").addEventListener("click", help);
run();
