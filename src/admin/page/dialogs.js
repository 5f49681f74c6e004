// Dialogs: keys, confirmation, message, admin token, routing decision.

import { count, duration, element, label, percent, seconds, text } from "./words.js";

/** A dialog with a title, which is not shown yet. */
export function open(title, className = "") {
  const dialog = element("dialog", className);
  const head = element("h2", "", title);
  head.id = "dialog-title";
  dialog.setAttribute("aria-labelledby", head.id);
  dialog.append(head);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  return dialog;
}

/** Adds a line of buttons, each with a label, a class and an action, which close the dialog. */
export function buttons(dialog, ...labels) {
  const line = element("div", "buttons");
  const created = labels.map(([label, className, action]) => {
    const button = element("button", className, label);
    button.type = "button";
    button.addEventListener("click", () => {
      dialog.close();
      action?.();
    });
    line.append(button);
    return button;
  });
  dialog.append(line);
  return created;
}

/** Whether a dialog is open. */
export const isOpen = () => document.querySelector("dialog[open]") !== null;

/** Shows the keys. */
export function help() {
  const dialog = open("Keys", "keys");
  const list = element("dl");
  const keys = [
    ["/", "filter all tables"], ["Esc", "clear the filter"],
    ["1 2 3 4", "go to backends, streams, requests, clients"], ["↑ ↓ Home End", "move between rows"],
    ["s", "sort by the next column"], ["d", "drain or undrain the backend"],
    ["Enter", "details of the backend, routing decision of the request"], ["t", "open the trace of the request"],
    ["p", "pause or resume"], ["?", "show the keys"],
  ];
  for (const [key, words] of keys) {
    const term = element("dt");
    term.append(...key.split(" ").map((name) => element("kbd", "", name)));
    list.append(term, element("dd", "", words));
  }
  dialog.append(list);
  buttons(dialog, ["Close", "main"]);
  dialog.showModal();
}

/** Requests a confirmation. Resolves to whether the user confirmed. */
export function confirm(title, message, label) {
  return new Promise((resolve) => {
    const dialog = open(title);
    dialog.append(element("p", "", message));
    const [, button] = buttons(dialog, ["Cancel", ""], [label, "main", () => resolve(true)]);
    dialog.addEventListener("close", () => resolve(false));
    dialog.showModal();
    button.focus();
  });
}

/** Shows a message. */
export function showMessage(title, message) {
  const dialog = open(title);
  dialog.append(element("p", "", message));
  buttons(dialog, ["Close", "main"]);
  dialog.showModal();
}

/** Requests the admin token from the user. Resolves to "" if the user cancels. */
export function requestToken(isWrong) {
  return new Promise((resolve) => {
    const dialog = open("Admin token");
    const form = element("form");
    form.method = "dialog";
    const message = isWrong
      ? "This is not the token of access.admin_token."
      : "This page needs the token of access.admin_token. The token is stored in this tab only.";
    const label = element("label", "", "Token");
    const input = element("input");
    Object.assign(input, { type: "password", autocomplete: "off", required: true, id: "token" });
    label.htmlFor = input.id;
    const button = element("button", "main", "Submit");
    button.type = "submit";
    const line = element("div", "buttons");
    line.append(button);
    form.append(element("p", "", message), label, input, line);
    dialog.append(form);
    dialog.addEventListener("close", () => resolve(input.value.trim()));
    dialog.showModal();
  });
}

const DETAILS = [
  ["URL", (backend) => text(backend.url)],
  ["Models", (backend) => text(backend.models.join(", "))],
  ["Engine", (backend) => text([backend.version, backend.front_end && `${backend.front_end} front end`].filter(Boolean).join(", "))],
  ["Context", (backend) => text(Object.entries(backend.max_model_len).map(([model, length]) => `${model}: ${count(length)} tokens`).join(", "))],
  ["Does not serve", (backend) => backend.unserved.join(", ") || "none known"],
  ["State", (backend) => label(backend.state)],
  ["Condition", (backend) => label(backend.condition)],
  ["Why", (backend) => text(backend.condition_reason ?? backend.reason)],
  ["Circuit breaker", (backend) => label(backend.breaker)],
  ["TTFT, last minute", (backend) => `${seconds(backend.ttft_seconds)} (${count(backend.ended_streams)} streams)`],
  ["Failed attempts", (backend) => `${count(backend.failed_attempts)} (${percent(backend.failed_share)})`],
  ["Answered with 4xx", (backend) => Object.entries(backend.client_errors).map(([status, times]) => `${status}: ${count(times)}`).join(", ") || "none"],
  ["KV cache", (backend) => `${percent(backend.kv_usage)} of ${count(backend.kv_capacity_tokens)} tokens`],
  ["Requests", (backend) => `${count(backend.running)} running, ${count(backend.waiting)} waiting, ${count(backend.in_flight)} of this gateway`],
  ["Last scrape", (backend) => (backend.scrape_error ? `failed: ${backend.scrape_error}; ` : "") + `${seconds(backend.scrape_age_seconds)} ago`],
  ["Weight", (backend) => count(backend.weight)],
  ["Drain", (backend) => (backend.drain ? `by ${backend.drain.by} for ${duration(backend.drain.age_seconds)}${backend.drain.reason ? `: ${backend.drain.reason}` : ""}` : "no")],
];

/** Shows the details of a backend and its verdicts. */
export function showBackend(backend, verdicts) {
  const dialog = open(backend.name);
  const facts = element("dl", "facts one");
  for (const [name, format] of DETAILS) facts.append(element("dt", "", name), element("dd", "", format(backend)));
  dialog.append(facts);
  for (const verdict of verdicts.filter((one) => one.backend === backend.name)) {
    dialog.append(element("p", "notice", `${verdict.severity}: ${text(verdict.meaning)} ${text(verdict.remedy)}`));
  }
  buttons(dialog, ["Close", "main"]);
  dialog.showModal();
}

/** The facts about a request: first its result, then its routing decision. An empty fact is not shown. */
const FACTS = [
  ["Outcome", (decision) => `${label(decision.actual.outcome)} in ${seconds(decision.actual.duration_seconds)}`],
  ["Slow cause", (decision) => slowText(decision.actual)],
  ["TTFT", ({ predicted, actual }) => `${seconds(actual.ttft_seconds)}, predicted ${seconds(predicted.ttft_seconds)}`],
  ["First answer", ({ actual }) => (actual.first_answer_seconds === null ? "" : seconds(actual.first_answer_seconds))],
  ["Phases", (decision) => decision.phases.map(phaseText).join(", ")],
  ["Attempts", (decision) => decision.attempts.map(attemptText).join(", ")],
  ["Client", (decision) => text(decision.tenant ?? decision.client)],
  ["Prompt", ({ predicted, actual }) => `${tokens(actual)}, predicted ${tokens(predicted)}`],
  ["Policy", (decision) => text(decision.policy)],
  ["Backend", (decision) => text(decision.backend)],
  ["Reason", (decision) => label(decision.reason) + costText(decision)],
];

const slowText = ({ slow_cause: cause, slow_meaning: meaning }) => (cause === null ? "" : `${label(cause)}: ${meaning}`);
const tokens = (values) => `${count(values.input_tokens)} tokens, ${count(values.cached_tokens)} cached`;
const phaseText = ({ phase, seconds: took, is_estimated: isEstimated }) =>
  `${label(phase)} ${seconds(took)}${isEstimated ? " (estimated)" : ""}`;
const attemptText = ({ backend, status, failure, seconds: took }) =>
  `${backend} ${text(failure === null ? status : label(failure))} after ${seconds(took)}`;

/** How the predicted cost decided. Costs that differ by less than the error of predictions are a tie. */
function costText({ candidates, tie_cost: tie }) {
  const chosen = candidates.find((candidate) => candidate.chosen)?.cost;
  if (tie === null || chosen === undefined) return "";
  const ties = candidates.filter((candidate) => candidate.cost <= tie).length;
  return `: cost ${seconds(chosen)}${ties > 1 && chosen <= tie ? `, a tie with ${ties - 1} (up to ${seconds(tie)})` : ""}`;
}

/** The times of the chunks of a slow or broken stream, as facts. */
function chunkFacts({ chunks, stride, samples_ms: samples, longest_gaps: gaps, ended_ms: ended }) {
  const time = (ms) => seconds(ms / 1000);
  const every = stride > 1 ? `1 in ${stride} of ${count(chunks)} chunks` : `${count(chunks)} chunks`;
  const silence = samples.length === chunks ? ended - samples.at(-1) : null;
  return [
    ["Chunks", `${every} at ${samples.map(time).join(", ")}; end at ${time(ended)}`],
    ["Longest gaps", gaps.map((gap) => `${time(gap.gap_ms)} after ${count(gap.after_chunks)} chunks`).join(", ") || "none of 100 ms"],
    ...(silence === null ? [] : [["Last chunk to end", time(silence)]]),
  ];
}

const CANDIDATE = [
  ["Backend", (candidate) => (candidate.chosen ? `${candidate.backend} ✓` : text(candidate.backend))],
  ["Cost", (candidate) => seconds(candidate.cost)],
  ["Predicted TTFT", (candidate) => seconds(candidate.predicted_ttft_seconds)],
  ["Cached", (candidate) => count(candidate.cached)],
  ["Backlog", (candidate) => count(candidate.backlog)],
  ["KV cache", (candidate) => percent(candidate.kv_usage)],
  ["Queue", (candidate) => count(candidate.waiting)],
  ["Running", (candidate) => count(candidate.running)],
  ["In flight", (candidate) => count(candidate.in_flight)],
];

/** Shows the routing decision of a request. */
export function showDecision(id, decision) {
  const dialog = open("Routing decision", "wide");
  dialog.append(element("p", "id quiet", id));
  const facts = element("dl", "facts");
  const values = FACTS.map(([name, format]) => [name, format(decision)]).filter(([, value]) => value !== "");
  for (const [name, value] of [...values, ...(decision.chunk_timings ? chunkFacts(decision.chunk_timings) : [])]) {
    facts.append(element("dt", "", name), element("dd", "", value));
  }
  if (decision.trace_url) {
    const link = element("a", "", "Open the trace");
    Object.assign(link, { href: decision.trace_url, target: "_blank", rel: "noreferrer" });
    const value = element("dd");
    value.append(link);
    facts.append(element("dt", "", "Trace"), value);
  }
  const table = element("table");
  const head = element("tr");
  for (const [name] of CANDIDATE) head.append(element("th", "", name));
  table.append(head);
  for (const candidate of decision.candidates) {
    const row = element("tr", candidate.chosen ? "chosen" : "");
    for (const [name, format] of CANDIDATE) row.append(element("td", name === "Backend" ? "name" : "figure", format(candidate)));
    table.append(row);
  }
  for (const { backend, reason } of decision.excluded) {
    const row = element("tr", "quiet");
    const why = element("td", "", `no candidate: ${reason}`);
    why.colSpan = CANDIDATE.length - 1;
    row.append(element("td", "name", backend), why);
    table.append(row);
  }
  const frame = element("div", "frame");
  frame.append(table);
  dialog.append(facts, frame);
  buttons(dialog, ["Close", "main"]);
  dialog.showModal();
}
