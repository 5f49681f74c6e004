// The current verdicts, as in /diagnose. A verdict keeps its element while its values change, so that the
// remedy can be read and copied.

import { duration, element, number, percent, seconds, text } from "./words.js";

const LEVELS = { critical: "bad", warning: "warn", info: "info" };

/** The list of verdicts in a section of the page. */
export class Verdicts {
  #section;
  #items = new Map();

  constructor(section) {
    this.#section = section;
  }

  update(verdicts) {
    const list = this.#section.querySelector("ul");
    const known = this.#items;
    this.#items = new Map(verdicts.map((verdict) => {
      const key = `${verdict.verdict} ${verdict.backend}`;
      return [key, known.get(key) ?? empty()];
    }));
    for (const [key, item] of known) if (!this.#items.has(key)) item.remove();
    [...this.#items.values()].forEach((item, index) => {
      fill(item, verdicts[index]);
      const current = list.children[index];
      if (current !== item) list.insertBefore(item, current ?? null);
    });
    this.#section.hidden = verdicts.length === 0;
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
  const [level, title, details] = head.children;
  level.className = `chip ${LEVELS[verdict.severity] ?? "warn"}`;
  setText(level, text(verdict.severity));
  const cause = verdict.cause ? ` Cause: ${verdict.cause}` : "";
  setText(title, `${verdict.scope === "gateway" ? "the gateway" : verdict.backend || "all backends"}: ${text(verdict.meaning)}${cause}`);
  setText(details, `${verdict.verdict} · confidence ${verdict.confidence} · for ${duration(verdict.age_seconds)}`);
  setText(evidence, verdict.evidence.map(describe).join(" · "));
  setText(remedy, `→ ${text(verdict.remedy)}`);
  setText(disproof, `Disproved by: ${text(verdict.disproof)} See ${text(verdict.runbook)}.`);
}

/** Sets a text only if it differs, so that a selection of the user stays. */
function setText(node, content) {
  if (node.textContent !== content) node.textContent = content;
  node.hidden = content === "";
}

function describe(evidence) {
  const format = (value) => {
    if (evidence.unit === "ratio") return percent(value);
    return evidence.unit === "s" ? seconds(value) : `${number(value)} ${evidence.unit}`;
  };
  const usual = typeof evidence.usual === "number" ? `, usually ${format(evidence.usual)}` : "";
  return `${evidence.measure} ${format(evidence.value)} in ${seconds(evidence.window_seconds)}${usual}`;
}
