// What is the matter, as /diagnose says it. A verdict that stays keeps its place while its numbers
// move, so that what it says to do can be read and copied.

import { element, number, percent, seconds, span, text } from "./words.js";

const LEVELS = { critical: "bad", warning: "warn" };

/** The verdicts in a section of the page. */
export class Verdicts {
  #section;
  #items = new Map();

  constructor(section) {
    this.#section = section;
  }

  update(told) {
    const list = this.#section.querySelector("ul");
    const known = this.#items;
    this.#items = new Map(told.map((verdict) => {
      const key = `${verdict.verdict} ${verdict.backend}`;
      return [key, known.get(key) ?? empty()];
    }));
    for (const [key, item] of known) if (!this.#items.has(key)) item.remove();
    [...this.#items.values()].forEach((item, index) => {
      fill(item, told[index]);
      const there = list.children[index];
      if (there !== item) list.insertBefore(item, there ?? null);
    });
    this.#section.hidden = told.length === 0;
  }
}

function empty() {
  const item = element("li");
  const head = element("p");
  head.append(element("span"), element("strong"), element("span", "quiet"));
  item.append(head, element("p", "quiet"), element("p"), element("p", "quiet"));
  return item;
}

function fill(item, verdict) {
  const [head, evidence, remedy, disproof] = item.children;
  const [level, what, more] = head.children;
  level.className = `chip ${LEVELS[verdict.severity] ?? "warn"}`;
  say(level, text(verdict.severity));
  const cause = verdict.cause ? ` Cause: ${verdict.cause}` : "";
  say(what, `${text(verdict.backend)}: ${text(verdict.meaning)}${cause}`);
  say(more, `${verdict.verdict} · confidence ${verdict.confidence} · for ${span(verdict.age_seconds)}`);
  say(evidence, verdict.evidence.map(shown).join(" · "));
  say(remedy, `→ ${text(verdict.remedy)}`);
  say(disproof, `It is not so if: ${text(verdict.disproof)} See ${text(verdict.runbook)}.`);
}

/** Only what is new, so that a selection stays. */
function say(node, words) {
  if (node.textContent !== words) node.textContent = words;
  node.hidden = words === "";
}

function shown(evidence) {
  const of = (value) => {
    if (evidence.unit === "ratio") return percent(value);
    return evidence.unit === "s" ? seconds(value) : `${number(value)} ${evidence.unit}`;
  };
  const usual = typeof evidence.usual === "number" ? `, usually ${of(evidence.usual)}` : "";
  return `${evidence.measure} ${of(evidence.value)} in ${seconds(evidence.window_seconds)}${usual}`;
}
