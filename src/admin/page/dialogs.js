// What is asked and told in a dialog: the keys, a confirmation, the token, why a request went where.

import { count, element, percent, seconds, text } from "./words.js";

function open(title, className = "") {
  const dialog = element("dialog", className);
  const head = element("h2", "", title);
  head.id = "dialog-title";
  dialog.setAttribute("aria-labelledby", head.id);
  dialog.append(head);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  return dialog;
}

function buttons(dialog, ...labels) {
  const line = element("div", "buttons");
  const made = labels.map(([label, className, act]) => {
    const button = element("button", className, label);
    button.type = "button";
    button.addEventListener("click", () => {
      dialog.close();
      act?.();
    });
    line.append(button);
    return button;
  });
  dialog.append(line);
  return made;
}

/** Whether any dialog is open. */
export const isOpen = () => document.querySelector("dialog[open]") !== null;

/** The keys. */
export function help() {
  const dialog = open("Keys", "keys");
  const list = element("dl");
  const keys = [
    ["/", "filter all tables"], ["Esc", "clear the filter"],
    ["1 2 3", "go to replicas, streams, requests"], ["↑ ↓ Home End", "walk through the rows"],
    ["s", "sort by the next column"], ["d", "drain the replica, or end that"],
    ["Enter", "why did the request go there?"], ["t", "open the trace of the request"],
    ["p", "pause, or go on"], ["?", "this"],
  ];
  for (const [key, words] of keys) {
    const term = element("dt");
    term.append(...key.split(" ").map((one) => element("kbd", "", one)));
    list.append(term, element("dd", "", words));
  }
  dialog.append(list);
  buttons(dialog, ["Close", "main"]);
  dialog.showModal();
}

/** Asks before something is done. */
export function confirm(title, words, label) {
  return new Promise((resolve) => {
    const dialog = open(title);
    dialog.append(element("p", "", words));
    const [, button] = buttons(dialog, ["Cancel", ""], [label, "main", () => resolve(true)]);
    dialog.addEventListener("close", () => resolve(false));
    dialog.showModal();
    button.focus();
  });
}

/** Tells something that went wrong. */
export function tell(title, words) {
  const dialog = open(title);
  dialog.append(element("p", "", words));
  buttons(dialog, ["Close", "main"]);
  dialog.showModal();
}

/** Asks for the admin token. */
export function askToken(isWrong) {
  return new Promise((resolve) => {
    const dialog = open("Admin token");
    const form = element("form");
    form.method = "dialog";
    const words = isWrong
      ? "This is not the token of access.admin_token. Nothing is shown without it."
      : "This gateway shows itself to those who have the token of access.admin_token. It is kept in this tab only.";
    const label = element("label", "", "Token");
    const input = element("input");
    Object.assign(input, { type: "password", autocomplete: "off", required: true, id: "token" });
    label.htmlFor = input.id;
    const button = element("button", "main", "Look");
    button.type = "submit";
    const line = element("div", "buttons");
    line.append(button);
    form.append(element("p", "", words), label, input, line);
    dialog.append(form);
    dialog.addEventListener("close", () => resolve(input.value.trim()));
    dialog.showModal();
  });
}

const FACTS = [
  ["Policy", (why) => text(why.policy)],
  ["Reason", (why) => text(why.reason)],
  ["Replica", (why) => text(why.backend)],
  ["Outcome", (why) => text(why.actual?.outcome)],
  ["First token, predicted", (why) => seconds(why.predicted?.ttft_seconds)],
  ["First token, actual", (why) => seconds(why.actual?.ttft_seconds)],
  ["Prompt, predicted", (why) => `${count(why.predicted?.input_tokens)} tokens, ${count(why.predicted?.cached_tokens)} cached`],
  ["Prompt, actual", (why) => `${count(why.actual?.input_tokens)} tokens, ${count(why.actual?.cached_tokens)} cached`],
];

const CANDIDATE = [
  ["Replica", (one) => (one.chosen ? `${one.backend} ✓` : text(one.backend))],
  ["Predicted", (one) => seconds(one.predicted_ttft_seconds)],
  ["Cached", (one) => count(one.cached)],
  ["Backlog", (one) => count(one.backlog)],
  ["KV cache", (one) => percent(one.kv_usage)],
  ["Queue", (one) => count(one.waiting)],
  ["Running", (one) => count(one.running)],
  ["In flight", (one) => count(one.in_flight)],
];

/** Why a request went where it went. */
export function explain(id, why) {
  const dialog = open("Why did it go there?", "wide");
  dialog.append(element("p", "id quiet", id));
  const facts = element("dl", "facts");
  for (const [name, of] of FACTS) facts.append(element("dt", "", name), element("dd", "", of(why)));
  const table = element("table");
  const head = element("tr");
  for (const [name] of CANDIDATE) head.append(element("th", "", name));
  table.append(head);
  for (const one of why.candidates ?? []) {
    const row = element("tr", one.chosen ? "chosen" : "");
    for (const [name, of] of CANDIDATE) row.append(element("td", name === "Replica" ? "name" : "figure", of(one)));
    table.append(row);
  }
  const frame = element("div", "frame");
  frame.append(table);
  dialog.append(facts, frame);
  buttons(dialog, ["Close", "main"]);
  dialog.showModal();
}
