// The live page: fetches /streams once a second and shows it.

import {
  backendColumns, backendLevel, clientColumns, clientName, endedColumns, groupColumns, streamColumns,
} from "./columns.js";
import { confirmDrain, showBackend } from "./backend.js";
import { confirm, help, isOpen, requestToken, showMessage } from "./dialogs.js";
import { HeatMap, Timeline } from "./history.js";
import { Plot } from "./plots.js";
import { showDecision, showStream } from "./request.js";
import { Table } from "./tables.js";
import { Verdicts } from "./verdicts.js";
import { count, duration, element, label, number, percent, seconds } from "./words.js";

const INTERVAL_MS = 1000;
const TIMEOUT_MS = 5000;
/** Number of intervals between two requests for /history. */
const HISTORY_INTERVALS = 10;
/** Time after which a Prometheus should have read /metrics, in seconds. */
const METRICS_READ_SECONDS = 300;
/** Window of rates, in seconds. */
const RATE_WINDOW = 5;
/** Minimum length of the last interval of the history to be drawn, in seconds. */
const MIN_LAST_SECONDS = 3;
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

async function refreshHistory() {
  try {
    const { heat_map: map, marks } = await (await request("/history")).json();
    if (state.paused) return;
    heat.ttft.draw(map.ttft, map.bounds);
    heat.itl.draw(map.itl, map.bounds);
    timeline.update(marks);
  } catch (error) {
    showProblem(error);
  }
}

async function run() {
  for (let interval = 0; ; interval += 1) {
    if (!document.hidden && !state.withoutToken) {
      await refresh();
      if (interval % HISTORY_INTERVALS === 0) await refreshHistory();
    }
    await new Promise((resolve) => setTimeout(resolve, INTERVAL_MS));
  }
}

// === tiles

/** The values of each interval of the history, as a rate per second or as a share of the requests. */
const perSecond = (history, name) => history[name].map((value, index) => value / length(history, index));
const length = (history, index) =>
  index === history.requests.length - 1 ? Math.max(1, history.last_seconds) : history.interval_seconds;
const shareOf = (history, name) =>
  history[name].map((value, index) => (history.requests[index] > 0 ? value / history.requests[index] : null));

/** Minimum end of the axis of a share: 5 %, so that a single failure does not look like a total failure. */
const MIN_SHARE_AXIS = 0.05;

/** The CSS class of a figure for each level of harm. */
const LEVELS = { warning: "warn", critical: "bad" };

/** The tiles. The first four answer the first questions of an operator. `harm`: the harm that colours the number. */
const TILES = [
  {
    title: "Good answers", plotted: "not good", unit: "", format: percent, className: "failures", top: MIN_SHARE_AXIS, harm: "answers",
    value: ({ last_minute: { answers } }) => (answers.total > 0 ? answers.good / answers.total : null),
    past: (history) => shareOf(history, "bad_answers"),
    details: ({ last_minute: { answers } }) => [`${count(answers.good)} of ${count(answers.total)}`, ...badAnswers(answers)],
  },
  {
    ...shareTile("4xx", "client_errors", (live) => statuses(live.last_minute)),
    value: (live) => live.harm.client_errors.share,
  },
  shareTile("Refused", "refused", (live) =>
    [`${count(live.last_minute.refused)} of ${count(live.last_minute.requests)}`, ...longestWait(live), ...heldBecause(live)]),
  { ...quantileTile("TTFT", "ttft", firstAnswer), harm: "slow_first_output" },
  {
    title: "Requests", unit: "/s", value: (live) => rate(live, "requests"), format: number,
    past: (history) => perSecond(history, "requests"),
    details: (live) => [`${count(live.requests_in_flight)} in flight`, `${count(waiting(live))} waiting`],
  },
  {
    title: "Output tokens", unit: "/s", value: (live) => rate(live, "output_tokens"), format: number,
    past: (history) => perSecond(history, "output_tokens"),
    details: (live) => [`${count(live.streams.count)} open streams`],
  },
  { ...quantileTile("ITL", "itl"), harm: "slow_output" },
  quantileTile("E2E", "e2e"),
];

/** The results that clients got instead of a good answer. */
const BAD_ANSWERS = ["failed", "empty", "damaged", "truncated", "client_timeout", "refused", "rejected", "late"];
const badAnswers = (answers) =>
  BAD_ANSWERS.filter((name) => answers[name] > 0).map((name) => `${count(answers[name])} ${label(name)}`);

function shareTile(title, name, details) {
  return {
    title, unit: "", format: percent, className: "failures", top: MIN_SHARE_AXIS, harm: name, details,
    past: (history) => shareOf(history, name),
    value: ({ last_minute: minute }) => (minute.requests > 0 ? minute[name] / minute.requests : null),
  };
}

/** A tile with the p95, because a median would hide one slow backend. `more` returns further texts. */
function quantileTile(title, name, more = () => []) {
  const quantiles = (live) => live.last_minute[name];
  return {
    title: `${title} p95`, unit: "", value: (live) => quantiles(live)?.p95 ?? null, format: seconds,
    past: (history) => history[`${name}_p95`],
    details: (live) => [`p50 ${seconds(quantiles(live)?.p50)}`, `p99 ${seconds(quantiles(live)?.p99)}`, ...more(live)],
  };
}

/** The wait for the first answer token, because users of reasoning models do not see the reasoning. */
function firstAnswer({ last_minute: minute, harm }) {
  if (!minute.first_answer) return [];
  return [element("span", LEVELS[harm.slow_first_answer.level] ?? "", `first answer p95 ${seconds(minute.first_answer.p95)}`)];
}

/** The longest wait in the queue. The TTFT does not show this wait, because it covers only served requests. */
const longestWait = (live) =>
  (live.longest_wait_seconds === null ? [] : [`longest wait ${seconds(live.longest_wait_seconds)}`]);

/** Why requests wait although backends have capacity. */
const heldBecause = (live) => (live.held_because ? [live.held_because] : []);

/** The statuses of 4xx with the number of their responses. */
function statuses(minute) {
  const sums = new Map();
  for (const counts of [minute.backend_client_errors, minute.gateway_client_errors]) {
    for (const [status, times] of Object.entries(counts)) sums.set(status, (sums.get(status) ?? 0) + times);
  }
  return [...sums].map(([status, times]) => `${status}: ${count(times)}`);
}

for (const tile of TILES) {
  const article = element("article", `tile ${tile.className ?? ""}`);
  tile.figure = element("strong");
  tile.note = element("p", "quiet parts");
  article.append(element("h2", "", tile.title), tile.figure, tile.note);
  tile.plot = new Plot(article, tile.plotted ?? tile.title, tile.plotted);
  $("tiles").append(article);
}

/** The history. If its last interval has hardly begun, the interval is left out, because its values would be noise. */
function withoutShortEnd(history) {
  if (history.last_seconds >= MIN_LAST_SECONDS || history.requests.length < 2) return history;
  const shorter = Object.entries(history).map(([name, value]) => [name, Array.isArray(value) ? value.slice(0, -1) : value]);
  return { ...Object.fromEntries(shorter), last_seconds: history.interval_seconds };
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

/** Length above which a list of backends is folded below the backends that need attention. */
const MAX_UNFOLDED_BACKENDS = 12;

const verdicts = new Verdicts($("verdicts"));
const heat = {
  ttft: new HeatMap($("heat"), "TTFT", "streams"), itl: new HeatMap($("heat"), "ITL", "gaps between outputs"),
};
const timeline = new Timeline($("timeline"));
const groupTable = (id, title, name) => new Table($(id), {
  id, title, columns: groupColumns(name, () => state.latest.last_minute.seconds), key: (group) => group.name,
  sort: { name: "requests", order: "down" }, empty: "No requests in the last minute.",
});
const tables = {
  backends: new Table($("backends"), {
    id: "backends", title: "Backends", columns: backendColumns(drain), key: (backend) => backend.name,
    sort: { name: "health", order: "up" }, empty: "No backends.", level: backendLevel, foldAbove: MAX_UNFOLDED_BACKENDS,
    onKey: (event, backend) => event.key === "d" && isPlain(event) && (drain(backend), true),
  }),
  streams: new Table($("streams"), {
    id: "streams", title: "Open streams", columns: streamColumns, key: (stream) => stream.number,
    sort: { name: "age", order: "down" }, empty: "No open streams.",
  }),
  ended: new Table($("ended"), {
    id: "ended", title: "Ended requests", columns: endedColumns(traceLink),
    key: (request) => request.number, sort: { name: "age", order: "up" },
    empty: "No ended requests.",
    onKey: (event, request) => {
      const url = event.key === "t" && isPlain(event) && traceLink(request.trace_id);
      if (url) window.open(url, "_blank", "noreferrer");
      return Boolean(url);
    },
  }),
  clients: new Table($("clients"), {
    id: "clients", title: "Clients", columns: clientColumns, key: clientName,
    sort: { name: "share", order: "down" }, empty: "No clients.",
  }),
  models: groupTable("models", "Models", "Model"),
  tenants: groupTable("tenants", "Tenants", "Tenant"),
};

const isPlain = (event) => !event.ctrlKey && !event.metaKey && !event.altKey;

/** The CSS class of the label for each state of the gateway. All other states have the class `bad`. */
const STATES = { ready: "good", changed: "warn", degraded: "warn", shutting_down: "warn" };

function pill(className, label, reasons = []) {
  $("state").className = `pill ${className}`;
  $("state").textContent = [label, ...(reasons.length > 0 ? [reasons.join("; ")] : [])].join(": ");
  // The browser tab shows the state too.
  document.title = `${label} – tokenweir`;
}

function show(live) {
  const isFirst = state.latest === null;
  state.latest = live;
  storeSample(live);
  document.querySelector("main").hidden = false;
  pill(STATES[live.state] ?? "bad", label(live.state), live.state_reasons);
  $("about").textContent = `${live.version} · ${live.policy} · up ${duration(live.uptime_seconds)}`;
  $("pulse").textContent = state.paused ? "paused" : "live";
  const history = withoutShortEnd(live.history);
  for (const tile of TILES) {
    const value = tile.value(live);
    const unit = value === null ? "" : tile.unit;
    tile.figure.replaceChildren(tile.format(value), element("small", "", unit));
    tile.figure.className = LEVELS[live.harm[tile.harm]?.level] ?? "";
    tile.note.replaceChildren(...tile.details(live).map((part) => (typeof part === "string" ? element("span", "", part) : part)));
    tile.plot.draw(tile.past(history), history.interval_seconds, tile.format, tile.top);
  }
  verdicts.update(live.verdicts);
  tables.backends.update(live.backends);
  tables.streams.update(live.streams.oldest);
  tables.ended.update(live.ended);
  for (const name of ["clients", "models", "tenants"]) {
    tables[name].update(live[name]);
    // A single row cannot be compared.
    $(name).hidden = live[name].length < 2;
  }
  showNotes(live);
  if (isFirst) showTarget();
}

function showNotes(live) {
  tables.backends.note = live.backends_by_condition;
  const phases = Object.entries(live.streams.phases).map(([name, streams]) => `${streams} ${label(name)}`);
  const hidden = live.streams.count - live.streams.oldest.length;
  if (hidden > 0) phases.push(`the ${live.streams.oldest.length} oldest are listed`);
  tables.streams.note = phases.join(" · ");
  const slow = live.ended.filter((request) => request.slow_cause).length;
  tables.ended.note = `the last requests and the last slow requests · ${slow} slow`;
  const unread = live.metrics_read_seconds_ago ?? live.uptime_seconds;
  $("metrics-read").textContent = unread < METRICS_READ_SECONDS ? "" : `Nobody has read /metrics for ${duration(unread)}.`;
  tables.clients.note = "the largest shares of the requests of the last minute and of the open streams";
}

function traceLink(id) {
  const template = state.latest?.trace_ui;
  return id && template ? template.replaceAll("{trace_id}", encodeURIComponent(id)) : null;
}

// === actions

/** Shows the details that the URL fragment names. Rows and other pages can link to them. */
async function showTarget() {
  const [[kind, name] = []] = new URLSearchParams(location.hash.slice(1));
  if (!kind) return;
  document.querySelector("dialog[open]")?.close();
  const { backends, streams } = state.latest;
  const stream = streams.oldest.find((one) => one.request_id === name);
  if (kind === "at") {
    timeline.look(name);
    $("timeline").scrollIntoView();
  }
  if (kind === "filter") filterBy(name);
  if (kind === "request") await (stream ? showStream(stream) : openDecision(name));
  if (kind !== "backend") return;
  const backend = backends.find((one) => one.name === name);
  if (backend) showBackend(backend, state.latest);
  else showMessage("Backend", `There is no backend with the name ${name}.`);
}

/** Shows only the rows that contain a name, as if it were typed. */
function filterBy(name) {
  history.replaceState(null, "", location.pathname);
  $("filter").value = name;
  $("filter").dispatchEvent(new Event("input"));
  $("filter").focus();
}

async function openDecision(id) {
  try {
    const response = await request(`/decisions/${encodeURIComponent(id)}`);
    const decision = await response.json();
    if (response.ok) showDecision(id, decision);
    else showMessage("Request", `${decision.error}.`);
  } catch (error) {
    showMessage("Request", `The request to the gateway failed: ${error.message}.`);
  }
}

async function drain(backend) {
  const verb = backend.drained ? "undrain" : "drain";
  const answer = backend.drained
    ? (await confirm("Undrain this backend?", `${backend.name} gets new requests again.`, "Undrain")) && {}
    : await confirmDrain(backend, state.latest.backends);
  if (!answer) return;
  try {
    const query = new URLSearchParams({ backend: backend.name, ...answer });
    const response = await request(`/-/${verb}?${query}`, {
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
  4: () => order[3].focus(),
  5: () => order[4].focus(),
  6: () => order[5].focus(),
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

/** Fetches a linked document, because a link cannot send the admin token. */
document.querySelector("footer").addEventListener("click", async (event) => {
  const link = event.target.closest("a");
  if (!link || sessionStorage.getItem(TOKEN_KEY) === null) return;
  event.preventDefault();
  const response = await request(link.pathname);
  window.open(URL.createObjectURL(await response.blob()), "_blank", "noreferrer");
});

for (const id of ["state", "pause", "help"]) $(id).hidden = false;
$("filter").addEventListener("input", (event) => {
  for (const table of order) table.filter = event.target.value;
});
$("pause").addEventListener("click", pause);
$("help").addEventListener("click", help);
window.addEventListener("hashchange", showTarget);
run();
