// The confirmation of a drain. Its warning is stronger if few backends remain.

import { buttons, open } from "./dialogs.js";
import { count, element } from "./words.js";

const DURATIONS = [["", "I undrain it"], ["15m", "15 minutes"], ["1h", "1 hour"], ["4h", "4 hours"]];

/**
 * The model with the fewest other backends that get requests, and their number. Without models, all backends
 * count.
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
