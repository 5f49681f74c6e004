// The details of one request: a waterfall of its phases, its facts and its routing decision.

import { buttons, detailLink, factList, itemTable, open } from "./dialogs.js";
import { shape } from "./plots.js";
import { count, element, label, percent, seconds, text } from "./words.js";

/** The facts about a request: its result, and then its routing decision. Empty facts are not shown. */
const FACTS = [
  ["Outcome", (decision) => `${label(decision.actual.outcome)} in ${seconds(decision.actual.duration_seconds)}`],
  ["Slow cause", (decision) => slowText(decision.actual)],
  ["TTFT", ({ predicted, actual }) => `${seconds(actual.ttft_seconds)}, predicted ${seconds(predicted.ttft_seconds)}`],
  ["First answer", ({ actual }) => (actual.first_answer_seconds === null ? "" : seconds(actual.first_answer_seconds))],
  ["Client", (decision) => text(decision.tenant ?? decision.client)],
  ["Prompt", ({ predicted, actual }) => `${tokens(actual)}, predicted ${tokens(predicted)}`],
  ["Policy", (decision) => text(decision.policy)],
  ["Backend", (decision) => detailLink("backend", decision.backend)],
  ["Reason", (decision) => label(decision.reason) + costText(decision)],
];

const slowText = ({ slow_cause: cause, slow_meaning: meaning }) => (cause === null ? "" : `${label(cause)}: ${meaning}`);
const tokens = (values) => `${count(values.input_tokens)} tokens, ${count(values.cached_tokens)} cached`;

/** The effect of the predicted cost on the decision. Costs that differ by less than the error of predictions tie. */
function costText({ candidates, tie_cost: tie }) {
  const chosen = candidates.find((candidate) => candidate.chosen)?.cost;
  if (tie === null || chosen === undefined) return "";
  const ties = candidates.filter((candidate) => candidate.cost <= tie).length;
  return `: cost ${seconds(chosen)}${ties > 1 && chosen <= tie ? `, a tie with ${ties - 1} (up to ${seconds(tie)})` : ""}`;
}

/** The CSS class of the bar of each phase. Phases without a class are times in the gateway. */
const PHASE_BARS = {
  gateway_queue: "queue", queue: "queue", front_end: "engine", prefill: "engine", decode: "output", unexplained: "unknown",
};

/** The steps of a request in the order of time. Each step has a name, seconds, and the class of its bar. */
function steps({ phases, attempts, actual }) {
  const known = phases.map(({ phase, seconds: took, is_estimated: isEstimated }) => ({
    phase, took, isEstimated, name: label(phase), kind: PHASE_BARS[phase] ?? "gateway",
  }));
  const failed = attempts.filter(({ failure }) => failure !== null).map(({ backend, failure, seconds: took }) => ({
    phase: "attempt", took: took ?? 0, name: `${backend}: ${label(failure)}`, kind: "failure",
  }));
  // The failed attempts replace their sum. Without an output, the last attempt failed too.
  const place = known.findIndex(({ phase }) => phase === "failed_attempts");
  if (place >= 0) known.splice(place, 1, ...failed);
  else known.push(...failed);
  const sum = (list) => list.reduce((total, { took }) => total + took, 0);
  const toOutput = known.filter(({ phase }) => phase !== "decode");
  const upload = (actual.client_ttft_seconds ?? 0) - sum(toOutput);
  if (upload > 0) known.unshift({ phase: "upload", took: upload, name: "request body", kind: "client" });
  const rest = actual.duration_seconds - sum(known);
  if (rest > 0) known.push({ phase: "end", took: rest, name: "end of the response", kind: "client" });
  return known;
}

/** The width of a waterfall in the units of its bars. */
const WIDTH = 1000;

/** The steps of a request as a table with a bar for each step. A mark in the output is a gap between two chunks. */
function waterfall(decision) {
  const total = Math.max(decision.actual.duration_seconds, 1e-6);
  const place = (time) => Math.min(Math.max((time / total) * WIDTH, 0), WIDTH);
  const table = element("table", "waterfall");
  table.append(element("caption", "quiet", `${seconds(total)} from the request head to the end. ≈ is an estimate.`));
  let start = 0;
  for (const { phase, took, isEstimated, name, kind } of steps(decision)) {
    const row = table.insertRow();
    const svg = shape("svg", { viewBox: `0 0 ${WIDTH} 10`, preserveAspectRatio: "none", "aria-hidden": "true" });
    const part = (from, to, className) => {
      const [x, end] = [place(from), place(to)];
      // The minimum width keeps the bar of a short time visible.
      svg.append(shape("rect", { x: Math.min(x, WIDTH - 2), width: Math.max(end - x, 2), height: 10, class: className }));
    };
    part(start, start + took, kind);
    if (phase === "decode") outputParts(decision.chunk_timings, part);
    row.append(Object.assign(element("th", "", name), { scope: "row" }));
    row.insertCell().append(svg);
    row.append(element("td", "figure", `${isEstimated ? "≈ " : ""}${seconds(took)}`));
    start += took;
  }
  return table;
}

/** Draws the chunks of a slow or broken stream, and the gaps between them. */
function outputParts(timings, part) {
  for (const ms of timings?.samples_ms ?? []) part(ms / 1000, ms / 1000, "chunk");
  for (const { ended_ms: end, gap_ms: gap } of timings?.longest_gaps ?? []) part((end - gap) / 1000, end / 1000, "silence");
}

/** The number of chunks, and the longest gaps, as facts. */
function chunkFacts(timings) {
  if (!timings) return [];
  const silences = timings.longest_gaps.map((gap) => `${seconds(gap.gap_ms / 1000)} after ${count(gap.after_chunks)}`);
  return [["Chunks", count(timings.chunks)], ["Longest silences", silences.join(", ") || "none of 100 ms"]];
}

const CANDIDATE = [
  ["Backend", (candidate) => text(candidate.backend)],
  ["Cost", (candidate) => seconds(candidate.cost)],
  ["Predicted TTFT", (candidate) => seconds(candidate.predicted_ttft_seconds)],
  ["Cached", (candidate) => count(candidate.cached)],
  ["Backlog", (candidate) => count(candidate.backlog)],
  ["KV cache", (candidate) => percent(candidate.kv_usage)],
  ["Queue", (candidate) => count(candidate.waiting)],
  ["Running", (candidate) => count(candidate.running)],
  ["In flight", (candidate) => count(candidate.in_flight)],
];

/** Shows an ended request. `decision`: its document from /decisions. */
export function showDecision(id, decision) {
  const dialog = open("Request", "wide");
  dialog.append(element("p", "id quiet", id), waterfall(decision));
  const facts = FACTS.map(([name, format]) => [name, format(decision)]).concat(chunkFacts(decision.chunk_timings));
  if (decision.trace_url) {
    const link = element("a", "", "Open the trace");
    facts.push(["Trace", Object.assign(link, { href: decision.trace_url, target: "_blank", rel: "noreferrer" })]);
  }
  const table = itemTable(CANDIDATE, decision.candidates, { rowClass: ({ chosen }) => (chosen ? "chosen" : "") });
  for (const { backend, reason } of decision.excluded) {
    const row = table.tBodies[0].insertRow();
    row.className = "quiet";
    const why = element("td", "", `no candidate: ${reason}`);
    why.colSpan = CANDIDATE.length - 1;
    row.append(element("td", "name", backend), why);
  }
  const frame = element("div", "frame");
  frame.tabIndex = 0;
  frame.append(table);
  dialog.append(factList(facts.filter(([, value]) => value !== "")), frame);
  buttons(dialog, ["Close", "main"]);
  dialog.showModal();
}

/** Shows an open stream, which is an entry of /streams. */
export function showStream(stream) {
  const dialog = open("Open stream");
  dialog.append(element("p", "id quiet", stream.request_id), factList([
    ["Phase", label(stream.phase)],
    ["Age", seconds(stream.age_seconds)],
    ["Tokens", count(stream.tokens)],
    ["Last output", stream.last_output_age_seconds === null ? "none yet" : `${seconds(stream.last_output_age_seconds)} ago`],
    ["Prompt", `about ${count(stream.prompt_tokens)} tokens`],
    ["Backend", stream.backend === null ? text(null) : detailLink("backend", stream.backend)],
    ["Model", text(stream.model)],
    ["Client", text(stream.tenant ?? stream.client)],
  ], "one"));
  dialog.append(element("p", "quiet", "Its phases and its routing decision are known when it has ended."));
  buttons(dialog, ["Close", "main"]);
  dialog.showModal();
}
