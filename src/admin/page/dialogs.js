// Dialogs: keys, confirmation, message, admin token.

import { commonEnd, element, showName, target } from "./words.js";

/** A hidden dialog with a title. Closing it removes the URL fragment that opened it. */
export function open(title, className = "") {
  const dialog = element("dialog", className);
  const head = element("h2", "", title);
  head.id = "dialog-title";
  dialog.setAttribute("aria-labelledby", head.id);
  dialog.append(head);
  const { hash } = location;
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (hash !== "" && location.hash === hash) history.replaceState(null, "", location.pathname);
  });
  // The dialog itself has the focus, so that it does not scroll to a list far below its beginning.
  if (className === "wide") dialog.autofocus = true;
  document.body.append(dialog);
  return dialog;
}

/** A list of facts. Each fact has a name, and a text or a node. */
export function factList(facts, className = "") {
  const list = element("dl", `facts ${className}`);
  for (const [name, value] of facts) {
    const fact = element("dd");
    fact.append(value);
    list.append(element("dt", "", name), fact);
  }
  return list;
}

/**
 * A table of items. A column has a title, and a function that returns the text or the node of an item. The first column
 * has names, which may be cut. `rowClass` returns the class of the row of an item.
 */
export function itemTable(columns, items, { cellClass = "figure", rowClass = () => "" } = {}) {
  const table = element("table");
  const head = table.createTHead().insertRow();
  columns.forEach(([title], index) => {
    head.append(Object.assign(element("th", index === 0 ? "" : cellClass, title), { scope: "col" }));
  });
  const body = table.createTBody();
  const end = commonEnd(items.map(columns[0][1]).filter((name) => typeof name === "string"));
  for (const item of items) {
    const row = body.insertRow();
    row.className = rowClass(item);
    columns.forEach(([, value], index) => {
      const cell = row.insertCell();
      cell.className = index === 0 ? "name" : cellClass;
      const content = value(item);
      if (index > 0 || typeof content !== "string") return cell.append(content);
      cell.append(element("span"));
      showName(cell.firstChild, content, end);
    });
  }
  return table;
}

/** A link to the details of a backend or of a request. */
export const detailLink = (kind, name, shown = name) => Object.assign(element("a", "", shown), { href: target(kind, name), title: name });

/** Adds a line of buttons, each with a label, a class and an action. Each button closes the dialog. */
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

/** Shows the list of keyboard shortcuts. */
export function help() {
  const dialog = open("Keys", "keys");
  const list = element("dl");
  const keys = [
    ["/", "filter all tables"], ["Esc", "clear the filter"],
    ["1 … 6", "go to backends, streams, requests, clients, models, tenants"], ["↑ ↓ Home End", "move between rows"],
    ["s", "sort by the next column"], ["d", "drain or undrain the backend"],
    ["Enter", "details of the backend or of the request, as a click"], ["t", "open the trace of the request"],
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

/** Asks the user for a confirmation. Resolves to whether the user confirmed. */
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

/** Asks the user for the admin token. Resolves to "" if the user cancels. */
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
