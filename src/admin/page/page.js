// The live page: asks for /live once a second and shows what it says.

import { endedColumns, replicaColumns, streamColumns, takes } from "./columns.js";
import { askToken, confirm, explain, help, isOpen, tell } from "./dialogs.js";
import { Series, draw, plot } from "./plots.js";
import { Table } from "./tables.js";
import { Verdicts } from "./verdicts.js";
import { count, element, number, percent, seconds, span } from "./words.js";

const INTERVAL = 1000;
const PATIENCE = 5000;
/** Seconds over which rates are means. */
const RATE_WINDOW = 5;
const TOKEN = "tokenweir-admin-token";

const $ = (id) => document.getElementById(id);
const state = { paused: false, latest: null, moments: [], news: null, refused: false };

// === asking

async function ask(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = { ...options.headers, ...(token ? { authorization: `Bearer ${token}` } : {}) };
  const answer = await fetch(path, {
    ...options, headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE),
  });
  if (answer.status === 401) {
    pill("warn", "token wanted");
    const given = await askToken(token !== null);
    if (given === "") {
      state.refused = true;
      throw new Error("the admin token is wanted; reload the page to give it");
    }
    sessionStorage.setItem(TOKEN, given);
    return ask(path, options);
  }
  return answer;
}

async function look() {
  try {
    const answer = await ask("/live");
    if (!answer.ok) throw new Error(`/live answered ${answer.status}`);
    const live = await answer.json();
    state.news = Date.now();
    if (!state.paused) show(live);
    $("problem").hidden = true;
    document.body.classList.remove("stale");
  } catch (error) {
    fail(error);
  }
}

function fail(error) {
  const since = state.news === null ? "" : ` for ${span((Date.now() - state.news) / 1000)}`;
  const shown = state.latest ? " What is below is how it was." : "";
  const why = error.name === "TypeError" ? "the gateway does not answer" : error.message;
  const next = state.refused ? "" : " It is asked again every second.";
  $("problem").textContent = `No news${since}: ${why}.${shown}${next}`;
  $("problem").hidden = false;
  document.body.classList.add("stale");
  $("pulse").textContent = "";
  pill("bad", "no news");
}

async function run() {
  for (;;) {
    if (!document.hidden && !state.refused) await look();
    await new Promise((resolve) => setTimeout(resolve, INTERVAL));
  }
}

// === tiles

const TILES = [
  {
    title: "Requests", unit: "/s", value: (live) => rate(live, "requests"), words: number,
    more: (live) => `${count(live.requests_in_flight)} in flight · ${count(waiting(live))} waiting`,
  },
  {
    title: "Output tokens", unit: "/s", value: (live) => rate(live, "output_tokens"), words: number,
    more: (live) => `${count(live.streams.count)} streams open`,
  },
  quantileTile("First token", "ttft"),
  quantileTile("Between tokens", "itl"),
  quantileTile("Duration", "e2e"),
  {
    title: "Failed", unit: "", words: percent, className: "failures", top: 1,
    value: ({ last_minute: minute }) => (minute.requests > 0 ? minute.failed / minute.requests : null),
    more: ({ last_minute: minute }) =>
      `${count(minute.failed)} of ${count(minute.requests)} · ${count(minute.left)} left early`,
  },
];

/** The median, with its plot, and the tail in words. */
function quantileTile(title, name) {
  const of = (live) => live.last_minute[name];
  return {
    title: `${title}, p50`, unit: "", value: (live) => of(live)?.p50 ?? null, words: seconds,
    more: (live) => `p95 ${seconds(of(live)?.p95)} · p99 ${seconds(of(live)?.p99)}`,
  };
}

for (const tile of TILES) {
  const made = element("article", `tile ${tile.className ?? ""}`);
  tile.figure = element("strong");
  tile.rest = element("span", "quiet");
  tile.plot = plot("spark");
  tile.series = new Series();
  made.append(element("h2", "", tile.title), tile.figure, tile.rest, tile.plot);
  $("tiles").append(made);
}

const waiting = (live) => live.queue.reduce((sum, one) => sum + one.waiting, 0);

/** What a total grew by in the last seconds; before that is known, the mean of the last minute. */
function rate(live, name) {
  const first = state.moments.find((one) => live.uptime_seconds - one.uptime <= RATE_WINDOW + 0.5);
  const passed = live.uptime_seconds - (first?.uptime ?? live.uptime_seconds);
  if (passed < 0.5) {
    const { seconds: long } = live.last_minute;
    return long > 0 ? live.last_minute[name] / long : null;
  }
  return Math.max(0, live.totals[name] - first[name]) / passed;
}

function remember(live) {
  const { uptime_seconds: uptime, totals } = live;
  const last = state.moments.at(-1);
  // The gateway has been started again.
  if (last && last.uptime > uptime) state.moments = [];
  state.moments.push({ uptime, ...totals });
  state.moments = state.moments.filter((one) => uptime - one.uptime <= 2 * RATE_WINDOW);
}

// === the page

const verdicts = new Verdicts($("verdicts"));
const tables = {
  replicas: new Table($("replicas"), {
    id: "replicas", title: "Replicas", columns: replicaColumns(drain), key: (replica) => replica.name,
    sort: { name: "name", order: "up" }, empty: "There are no replicas.",
    onKey: (event, replica) => event.key === "d" && plain(event) && (drain(replica), true),
  }),
  streams: new Table($("streams"), {
    id: "streams", title: "Open streams", columns: streamColumns, key: (stream) => stream.number,
    sort: { name: "age", order: "down" }, empty: "No stream is open.",
    onKey: (event, stream) => event.key === "Enter" && (why(stream.request_id), true),
  }),
  ended: new Table($("ended"), {
    id: "ended", title: "Requests that ended", columns: endedColumns(traceLink),
    key: (request) => request.number, sort: { name: "age", order: "up" },
    empty: "No request has ended.",
    onKey: (event, request) => {
      if (event.key === "Enter") return why(request.request_id), true;
      const url = event.key === "t" && plain(event) && traceLink(request.trace_id);
      if (url) window.open(url, "_blank", "noreferrer");
      return Boolean(url);
    },
  }),
};

const plain = (event) => !event.ctrlKey && !event.metaKey && !event.altKey;

function pill(className, words) {
  $("state").className = `pill ${className}`;
  $("state").textContent = words;
  // Among many tabs, or in a bookmark bar.
  document.title = `${words} – tokenweir`;
}

function show(live) {
  state.latest = live;
  remember(live);
  document.querySelector("main").hidden = false;
  if (live.draining) pill("warn", "shutting down");
  else if (live.ready && live.panic) pill("warn", "ready, panic mode");
  else if (live.ready) pill("good", "ready");
  else pill("bad", unready(live));
  $("about").textContent = `${live.version} · ${live.policy} · up ${span(live.uptime_seconds)}`;
  $("pulse").textContent = state.paused ? "paused" : "live";
  for (const tile of TILES) {
    const value = tile.value(live);
    const unit = value === null ? "" : tile.unit;
    tile.figure.replaceChildren(tile.words(value), element("small", "", unit));
    tile.rest.textContent = tile.more(live);
    tile.series.push(value);
    draw(tile.plot, tile.series.values, tile.top);
  }
  verdicts.update(live.verdicts);
  tables.replicas.update(live.replicas);
  tables.streams.update(live.streams.oldest);
  tables.ended.update(live.ended);
  showNotes(live);
}

/** Why it takes no requests. */
const unready = ({ unready }) => (unready ? `not ready: ${unready}` : "not ready");

function showNotes(live) {
  const up = live.replicas.filter(takes).length;
  tables.replicas.note = `${up} of ${live.replicas.length} take requests`;
  const phases = Object.entries(live.streams.phases).map(([name, many]) => `${many} ${name}`);
  const hidden = live.streams.count - live.streams.oldest.length;
  if (hidden > 0) phases.push(`the ${live.streams.oldest.length} oldest are listed`);
  tables.streams.note = phases.join(" · ");
  const slow = live.ended.filter((one) => one.slow).length;
  tables.ended.note = `the last, and the last slow ones · ${slow} slow`;
}

function traceLink(id) {
  const template = state.latest?.trace_ui;
  return id && template ? template.replaceAll("{trace_id}", encodeURIComponent(id)) : null;
}

// === doing

async function why(id) {
  try {
    const answer = await ask(`/explain/${encodeURIComponent(id)}`);
    const told = await answer.json();
    if (answer.ok) explain(id, told);
    else tell("Why did it go there?", `${told.error}.`);
  } catch (error) {
    tell("Why did it go there?", `It cannot be asked: ${error.message}.`);
  }
}

async function drain(replica) {
  const verb = replica.drained ? "undrain" : "drain";
  const words = replica.drained
    ? `${replica.name} gets new requests again.`
    : `${replica.name} gets no new requests. Its ${count(replica.in_flight)} in flight go on to their end.`;
  const title = replica.drained ? "Undrain a replica?" : "Drain a replica?";
  if (!(await confirm(title, words, replica.drained ? "Undrain" : "Drain"))) return;
  try {
    const answer = await ask(`/-/${verb}?backend=${encodeURIComponent(replica.name)}`, {
      method: "POST", headers: { "content-type": "application/json" },
    });
    if (!answer.ok) tell("That did not work", await answer.text());
    await look();
  } catch (error) {
    tell("That did not work", `${error.message}.`);
  }
}

function pause() {
  state.paused = !state.paused;
  $("pause").setAttribute("aria-pressed", String(state.paused));
  $("pause").textContent = state.paused ? "Go on" : "Pause";
  $("pulse").textContent = state.paused ? "paused" : "live";
}

const order = Object.values(tables);
const current = () => order.find((table) => table.section.contains(document.activeElement)) ?? order[0];
const KEYS = {
  "/": () => $("filter").focus(),
  "?": help,
  p: pause,
  s: () => current().sortByNext(),
  d: () => tables.replicas.selected && drain(tables.replicas.selected),
  1: () => order[0].focus(),
  2: () => order[1].focus(),
  3: () => order[2].focus(),
};

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || isOpen() || !plain(event)) return;
  const filter = $("filter");
  if (event.target === filter) {
    if (event.key === "Escape") filter.value = "";
    if (event.key === "Escape" || event.key === "Enter") current().focus();
    if (event.key === "Escape") filter.dispatchEvent(new Event("input"));
    return;
  }
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

for (const id of ["state", "pause", "help"]) $(id).hidden = false;
$("filter").addEventListener("input", (event) => {
  for (const table of order) table.filter = event.target.value;
});
$("pause").addEventListener("click", pause);
$("help").addEventListener("click", help);
run();
