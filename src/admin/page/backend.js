// The details of a backend with its streams and its last requests, and the confirmation of a drain. If few backends
// would remain, the confirmation warns more strongly.

import { buttons, detailLink, factList, itemTable, open } from "./dialogs.js";
import { count, duration, element, label, number, percent, seconds, text } from "./words.js";

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

const requestLink = ({ request_id: id }) => detailLink("request", id, id.slice(0, 8));

const STREAM = [
  ["Stream", (stream) => requestLink(stream)],
  ["Phase", (stream) => label(stream.phase)],
  ["Age", (stream) => seconds(stream.age_seconds)],
  ["Tokens", (stream) => count(stream.tokens)],
  ["Last output", (stream) => seconds(stream.last_output_age_seconds)],
];

const ENDED = [
  ["Ended", (request) => requestLink(request)],
  ["Outcome", (request) => label(request.outcome)],
  ["Slow", (request) => label(request.slow_cause ?? "")],
  ["TTFT", (request) => seconds(request.ttft_seconds)],
  ["Duration", (request) => seconds(request.duration_seconds)],
  ["Tokens", (request) => number(request.output_tokens)],
];

/** Shows the details of a backend from the document of /streams. */
export function showBackend(backend, { verdicts, streams, ended }) {
  const dialog = open(backend.name, "wide");
  for (const verdict of verdicts.filter((one) => one.backend === backend.name)) {
    dialog.append(element("p", `notice ${verdict.severity === "critical" ? "alarm" : ""}`, `${verdict.severity}: ${text(verdict.meaning)} ${text(verdict.remedy)}`));
  }
  dialog.append(factList(DETAILS.map(([name, format]) => [name, format(backend)])));
  for (const [columns, requests] of [[STREAM, streams.oldest], [ENDED, ended]]) {
    const own = requests.filter((request) => request.backend === backend.name);
    if (own.length === 0) continue;
    const frame = element("div", "frame");
    frame.tabIndex = 0;
    frame.append(itemTable(columns, own));
    dialog.append(frame);
  }
  buttons(dialog, ["Close", "main"]);
  dialog.showModal();
}

const DURATIONS = [["", "I undrain it"], ["15m", "15 minutes"], ["1h", "1 hour"], ["4h", "4 hours"]];

/**
 * The model with the fewest other backends that get requests, and the number of these backends. If no model is known,
 * all other backends count.
 */
function remaining(backend, backends) {
  const others = backends.filter((other) => other.up && other.name !== backend.name);
  const serving = (model) => others.filter((other) => other.models.includes(model)).length;
  const perModel = backend.models.map((model) => ({ model, left: serving(model) }));
  perModel.sort((a, b) => a.left - b.left);
  return perModel[0] ?? { model: null, left: others.length };
}

function labelled(text, field, id) {
  const label = element("label", "", text);
  [label.htmlFor, field.id] = [id, id];
  return [label, field];
}

/**
 * Requests a confirmation, a reason and a duration. Resolves to the parameters of /-/drain, or to null if the user
 * cancels. For the last backend, the user must type its name.
 */
export function confirmDrain(backend, backends) {
  return new Promise((resolve) => {
    const { model, left } = remaining(backend, backends);
    const [isLast, isRisky] = [backend.up && left === 0, backend.up && left < 2];
    const dialog = open(isLast ? "Drain the last backend?" : "Drain this backend?");
    const continuing = `Its ${count(backend.in_flight)} requests in flight continue.`;
    dialog.append(element("p", "", `${backend.name} gets no new requests. ${continuing}`));
    const subject = model === null ? "" : ` for ${model}`;
    if (isLast) dialog.append(element("p", "notice alarm", `No other backend gets requests${subject}: every new request is refused.`));
    else if (isRisky) dialog.append(element("p", "notice alarm", `Only one backend remains${subject}. It gets all of the load.`));
    const reason = Object.assign(element("input"), { maxLength: 200, autocomplete: "off", placeholder: "optional" });
    const duration = element("select");
    for (const [value, label] of DURATIONS) duration.append(Object.assign(element("option", "", label), { value }));
    const name = Object.assign(element("input"), { autocomplete: "off", spellcheck: false });
    dialog.append(...labelled("Reason", reason, "reason"), ...labelled("Until", duration, "until"));
    if (isLast) dialog.append(...labelled(`Type ${backend.name} to confirm`, name, "confirmed"));
    const answer = () => resolve({
      ...(reason.value.trim() && { reason: reason.value.trim() }), ...(duration.value && { for: duration.value }),
    });
    const label = isLast ? "Drain the last backend" : "Drain";
    const [cancel, button] = buttons(dialog, ["Cancel", ""], [label, isRisky ? "danger" : "main", answer]);
    button.disabled = isLast;
    name.addEventListener("input", () => (button.disabled = name.value.trim() !== backend.name));
    dialog.addEventListener("close", () => resolve(null));
    dialog.showModal();
    (isLast ? name : isRisky ? cancel : button).focus();
  });
}
