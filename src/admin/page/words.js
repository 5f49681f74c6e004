// Numbers and times as text.

const DASH = "–";

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** A number in short form, such as 0.42, 12.3, 132 or 12.3k. */
export function number(value) {
  if (!isNumber(value)) return DASH;
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(size < 1e7 ? 2 : 1)}M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(1)}k`;
  if (size >= 100 || Number.isInteger(value)) return value.toFixed(0);
  return value.toFixed(size >= 10 ? 1 : 2);
}

/** An integer with thousands separators. */
export function count(value) {
  return isNumber(value) ? Math.round(value).toLocaleString("en-GB") : DASH;
}

/** A time in seconds, in a suitable unit. */
export function seconds(value) {
  if (!isNumber(value)) return DASH;
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 0.01) return `${(value * 1e3).toFixed(1)} ms`;
  if (value < 1) return `${(value * 1e3).toFixed(0)} ms`;
  if (value < 10) return `${value.toFixed(2)} s`;
  if (value < 60) return `${value.toFixed(1)} s`;
  return duration(value);
}

/** A long time in seconds as minutes, hours, days. */
export function duration(value) {
  if (!isNumber(value)) return DASH;
  const whole = Math.floor(value);
  const [days, hours] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24];
  const minutes = Math.floor(whole / 60) % 60;
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${minutes} min`;
  if (minutes > 0) return `${minutes} min ${whole % 60} s`;
  return `${whole} s`;
}

/** A ratio from 0 to 1 as a percentage. */
export function percent(value) {
  if (!isNumber(value)) return DASH;
  const hundredths = value * 100;
  return `${hundredths.toFixed(hundredths > 0 && hundredths < 9.95 ? 1 : 0)} %`;
}

/** An identifier of the gateway in words. */
export const label = (identifier) => identifier.replaceAll("_", " ");

/** Text, or a dash. */
export function text(value) {
  return value === null || value === undefined || value === "" ? DASH : String(value);
}

/**
 * An element with a class and a text. Text is set as textContent and never parsed as HTML, because names
 * come from clients.
 */
export function element(tag, className, content) {
  const created = document.createElement(tag);
  if (className) created.className = className;
  if (content !== undefined) created.textContent = content;
  return created;
}

/** The fragment of the URL that shows something: `backend`, `request`, `filter` or `at`. */
export const target = (kind, name) => `#${new URLSearchParams({ [kind]: name })}`;

/** Number of characters before the common end of all names that a cut name shows. */
const TAIL = 10;

/** The end that all names have in common, from a separator on, such as the domain of host names. */
export function commonEnd(names) {
  const different = [...new Set(names)];
  if (different.length < 2) return "";
  let end = different[0];
  for (const name of different) while (!name.endsWith(end)) end = end.slice(1);
  return end.slice(end.search(/[.:/]|$/u));
}

/**
 * Shows a name that is cut in the middle where space is short: names of replicas differ at their ends. The style sheet
 * cuts the common `end` of all names first.
 */
export function showName(node, name, end = "") {
  if (node.dataset.name === name + end) return;
  node.dataset.name = name + end;
  const own = end && name.endsWith(end) ? name.slice(0, -end.length) : name;
  const parts = [own.slice(0, -TAIL), own.slice(-TAIL), name.slice(own.length)];
  node.classList.add("cut");
  node.replaceChildren(...parts.filter(Boolean).map((part) => element("span", "", part)));
  node.title = name;
}
