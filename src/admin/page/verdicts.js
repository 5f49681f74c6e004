// The current verdicts, as in /diagnose. A verdict keeps its element while its values change, so that the user can
// read and copy the remedy.

import { duration, element, label, number, percent, seconds, text } from "./words.js";

const LEVELS = { critical: "bad", warning: "warn", info: "info" };

/** Whether the screen is narrow. A narrow screen shows the backends first, and the evidence on request. */
const NARROW = window.matchMedia("(max-width: 40rem)");

/** Maximum number of groups of verdicts that are shown before the user asks for the rest. */
const maxShown = () => (NARROW.matches ? 1 : 3);

/** Maximum number of backends that the heading of a group names. */
const MAX_NAMED = 3;

/** The list of verdicts in a section of the page. */
export class Verdicts {
  #section;
  #items = new Map();
  #all = [];
  #isOpen = false;
  #more = element("button", "fold");

  constructor(section) {
    this.#section = section;
    this.#more.type = "button";
    this.#more.addEventListener("click", () => {
      this.#isOpen = !this.#isOpen;
      this.update(this.#all);
    });
    section.append(this.#more);
  }

  update(verdicts) {
    const list = this.#section.querySelector("ul");
    const known = this.#items;
    this.#all = verdicts;
    const groups = [...Map.groupBy(verdicts, finding).values()];
    const shown = this.#isOpen ? groups : groups.slice(0, maxShown());
    this.#more.hidden = groups.length <= maxShown();
    const hidden = groups.slice(maxShown()).reduce((count, group) => count + group.length, 0);
    this.#more.textContent = this.#isOpen ? "Show fewer" : `Show ${hidden} more verdicts`;
    this.#items = new Map(shown.map(([first], index) => {
      const key = `${first.verdict} ${first.backend}`;
      return [key, known.get(key) ?? empty(index === 0)];
    }));
    for (const [key, item] of known) if (!this.#items.has(key)) item.remove();
    [...this.#items.values()].forEach((item, index) => {
      fill(item, shown[index]);
      const current = list.children[index];
      if (current !== item) list.insertBefore(item, current ?? null);
    });
    this.#section.hidden = verdicts.length === 0;
  }
}

/** An empty item. The evidence of the first verdict is shown at once. */
function empty(isFirst) {
  const item = element("li");
  const head = element("p");
  head.append(element("span"), element("strong"), element("span", "quiet"));
  const details = element("details");
  details.open = isFirst && !NARROW.matches;
  const disproof = element("p", "quiet");
  disproof.append(element("span"), element("a"));
  details.append(element("summary", "", "Evidence and runbook"), element("table", "evidence"), disproof);
  item.append(head, element("p", "remedy"), details);
  return item;
}

/** The key by which verdicts of several backends are shown as one: rule, severity, cause and remedy. */
function finding({ verdict, scope, severity, cause, remedy }) {
  return JSON.stringify([verdict, scope, severity, cause ?? null, remedy]);
}

/** The backends of a group of verdicts, the first ones by name. */
function subject(group) {
  if (group[0].scope === "gateway") return "the gateway";
  const names = group.slice(0, MAX_NAMED).map((verdict) => verdict.backend || "all backends").join(", ");
  return group.length > MAX_NAMED ? `${names} and ${group.length - MAX_NAMED} more` : names;
}

/** Fills an item from a group of verdicts. Shows the evidence of the first verdict. */
function fill(item, group) {
  const [verdict] = group;
  const [head, remedy, details] = item.children;
  const [level, title, about] = head.children;
  level.className = `chip ${LEVELS[verdict.severity] ?? "warn"}`;
  setText(level, text(verdict.severity));
  const cause = verdict.cause ? ` Cause: ${verdict.cause}` : "";
  setText(title, `${subject(group)}: ${text(verdict.meaning)}${cause}`);
  setText(about, `${label(verdict.verdict)} · confidence ${verdict.confidence} · for ${duration(verdict.age_seconds)}`);
  setText(remedy, `→ ${text(verdict.remedy)}`);
  const [, table, disproof] = details.children;
  showEvidence(table, verdict.evidence);
  setText(disproof.firstChild, `Disproved by: ${text(verdict.disproof)} `);
  const link = disproof.lastChild;
  setText(link, `Runbook of ${label(verdict.verdict)}`);
  link.href = `/runbooks#${encodeURIComponent(verdict.verdict)}`;
}

/** Sets a text only if it differs, so that a selection of the user stays. */
function setText(node, content) {
  if (node.textContent !== content) node.textContent = content;
  node.hidden = content === "";
}

/** Shows the evidence as a table. The head has the window that most values share. */
function showEvidence(table, values) {
  table.hidden = values.length === 0;
  const windows = values.map((value) => value.window_seconds);
  const times = (window) => windows.filter((other) => other === window).length;
  const usual = windows.toSorted((a, b) => times(b) - times(a))[0];
  // Usual values are not known in the first minutes.
  const isUsualKnown = values.some((value) => typeof value.usual === "number");
  const rows = [["", `Last ${seconds(usual)}`, isUsualKnown ? "Usually" : ""], ...values.map((value) => describe(value, usual, isUsualKnown))];
  while (table.rows.length > rows.length) table.deleteRow(-1);
  rows.forEach((cells, index) => {
    const row = table.rows[index] ?? table.insertRow();
    cells.forEach((content, column) => {
      const cell = row.cells[column] ?? row.appendChild(element(index === 0 || column === 0 ? "th" : "td"));
      if (cell.textContent !== content) cell.textContent = content;
    });
  });
}

const ABBREVIATIONS = /\b(kv|ttft|itl|e2e)\b/gu;

/** The name, the value and the usual value of a measure. A value of another window states its window. */
function describe(evidence, window, isUsualKnown) {
  const format = (value) => {
    if (typeof value !== "number") return "–";
    if (evidence.unit === "ratio") return percent(value);
    return evidence.unit === "s" ? seconds(value) : `${number(value)} ${evidence.unit}`;
  };
  const name = label(evidence.measure).replace(ABBREVIATIONS, (word) => word.toUpperCase());
  const other = evidence.window_seconds === window ? "" : ` in ${seconds(evidence.window_seconds)}`;
  return [name, format(evidence.value) + other, isUsualKnown ? format(evidence.usual) : ""];
}
