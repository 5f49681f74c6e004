// A table whose rows stay where they are while their numbers move: sorted, filtered, and walked
// through with the arrow keys.

import { element } from "./words.js";

/** gpu-9 stands before gpu-10. */
const WORDS = new Intl.Collator("en", { numeric: true });

/**
 * A column: `name`, `title` for its head, `value` of a row to sort and filter by, and either `text`
 * of a row or `make` and `show` for a cell of its own; `optional` if it is hidden while it is empty.
 */
export class Table {
  #columns;
  #key;
  #rows = new Map();
  #items = [];
  #filter = "";
  #sort;
  #body = element("tbody");
  #empty;
  #nothing;
  #note = element("span", "quiet");
  #heads = new Map();
  #onKey;

  constructor(section, { id, title, columns, key, sort, empty, onKey }) {
    [this.#columns, this.#key, this.#sort, this.#onKey] = [columns, key, sort, onKey];
    this.section = section;
    this.id = id;
    const head = element("h2", "", title);
    head.id = `${id}-title`;
    section.setAttribute("aria-labelledby", head.id);
    const line = element("div", "title");
    line.append(head, this.#note);
    const table = element("table", id);
    table.setAttribute("aria-labelledby", head.id);
    table.append(this.#head(), this.#body);
    const frame = element("div", "frame");
    this.#nothing = empty;
    this.#empty = element("p", "empty");
    frame.append(table, this.#empty);
    section.append(line, frame);
    this.#body.addEventListener("keydown", (event) => this.#walk(event));
    this.#body.addEventListener("focusin", (event) => this.#settle(event.target.closest("tr")));
  }

  #head() {
    const row = element("tr");
    for (const column of this.#columns) {
      const cell = element("th", column.className);
      cell.scope = "col";
      const button = element("button", "", column.title);
      button.type = "button";
      if (column.hint) button.title = column.hint;
      button.addEventListener("click", () => this.sortBy(column.name));
      cell.append(button);
      row.append(cell);
      this.#heads.set(column.name, cell);
    }
    const head = element("thead");
    head.append(row);
    return head;
  }

  /** Sorts by a column; by the same one again the other way round. */
  sortBy(name) {
    const again = this.#sort.name === name;
    const first = this.#columns.find((column) => column.name === name)?.first ?? "up";
    const other = this.#sort.order === "up" ? "down" : "up";
    this.#sort = { name, order: again ? other : first };
    this.#place();
  }

  /** Sorts by the column after the one that it is sorted by. */
  sortByNext() {
    const names = this.#columns.map((column) => column.name);
    this.sortBy(names[(names.indexOf(this.#sort.name) + 1) % names.length]);
  }

  set filter(text) {
    this.#filter = text.trim().toLowerCase();
    this.#place();
  }

  set note(text) {
    this.#note.textContent = text;
  }

  /** The row that the keys are for. */
  get selected() {
    const row = this.#body.querySelector("tr[tabindex='0']");
    return row && this.#rows.get(row.dataset.key)?.item;
  }

  /** Gives the keys to it. */
  focus() {
    const row = this.#body.querySelector("tr[tabindex='0']");
    (row ?? this.section.querySelector("th button")).focus();
  }

  update(items) {
    this.#items = items;
    const keys = new Set(items.map((item) => String(this.#key(item))));
    for (const [key, { row }] of this.#rows) {
      if (keys.has(key)) continue;
      if (row.contains(document.activeElement)) this.#leave(row);
      row.remove();
      this.#rows.delete(key);
    }
    for (const item of items) this.#show(item);
    this.#hideEmpty();
    this.#place();
  }

  #show(item) {
    const key = String(this.#key(item));
    let known = this.#rows.get(key);
    if (!known) {
      const row = element("tr");
      row.dataset.key = key;
      row.tabIndex = -1;
      const cells = this.#columns.map((column) => {
        const cell = element("td", column.className);
        cell.dataset.label = column.title;
        column.make?.(cell);
        row.append(cell);
        return cell;
      });
      known = { row, cells };
      this.#rows.set(key, known);
    }
    known.item = item;
    this.#columns.forEach((column, index) => {
      const cell = known.cells[index];
      if (column.show) column.show(cell, item);
      else {
        const text = column.text(item);
        if (cell.textContent !== text) cell.textContent = text;
      }
    });
  }

  /** A column that may be empty is not shown while it is. */
  #hideEmpty() {
    this.#columns.forEach((column, index) => {
      if (!column.optional) return;
      const hidden = !this.#items.some((item) => column.value(item));
      this.#heads.get(column.name).hidden = hidden;
      for (const { cells } of this.#rows.values()) cells[index].hidden = hidden;
    });
  }

  #place() {
    const column = this.#columns.find((one) => one.name === this.#sort.name);
    const way = this.#sort.order === "up" ? 1 : -1;
    const compare = (a, b) => {
      const [left, right] = [column.value(a), column.value(b)];
      if (left === right) return 0;
      // What is not known stands last.
      if (left === null || left === undefined) return 1;
      if (right === null || right === undefined) return -1;
      if (typeof left === "string") return WORDS.compare(left, String(right)) * way;
      return (left < right ? -1 : 1) * way;
    };
    const fits = (item) => {
      const words = this.#columns.map((one) => one.value(item) ?? "");
      return words.some((word) => String(word).toLowerCase().includes(this.#filter));
    };
    const shown = this.#items.filter(fits).sort(compare);
    const rows = shown.map((item) => this.#rows.get(String(this.#key(item))).row);
    const focused = document.activeElement;
    for (const { row } of this.#rows.values()) if (!rows.includes(row)) row.remove();
    rows.forEach((row, index) => {
      if (this.#body.children[index] !== row) {
        this.#body.insertBefore(row, this.#body.children[index] ?? null);
      }
    });
    if (focused !== document.activeElement && focused.isConnected) focused.focus();
    if (rows.length > 0 && !rows.some((row) => row.tabIndex === 0)) this.#settle(rows[0]);
    else this.#stops();
    this.#empty.hidden = rows.length > 0;
    this.#empty.textContent = this.#items.length > 0 ? "Nothing fits the filter." : this.#nothing;
    for (const [name, head] of this.#heads) {
      const order = this.#sort.order === "up" ? "ascending" : "descending";
      head.setAttribute("aria-sort", name === this.#sort.name ? order : "none");
    }
  }

  #settle(row) {
    if (!row) return;
    for (const other of this.#body.children) other.tabIndex = other === row ? 0 : -1;
    this.#stops();
  }

  /** Tab goes from the row that has the keys to the links and buttons in it, and to no others. */
  #stops() {
    for (const row of this.#body.children) {
      for (const inner of row.querySelectorAll("a, button")) inner.tabIndex = row.tabIndex;
    }
  }

  /** The row goes away: the keys go on with its neighbour. */
  #leave(row) {
    const next = row.nextElementSibling ?? row.previousElementSibling;
    this.#settle(next);
    next?.focus();
  }

  #walk(event) {
    const row = event.target.closest("tr");
    const rows = [...this.#body.children];
    const at = rows.indexOf(row);
    const to = {
      ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1,
    }[event.key];
    if (to !== undefined) {
      rows[Math.min(Math.max(to, 0), rows.length - 1)]?.focus();
      event.preventDefault();
      return;
    }
    // Enter on a link or a button in the row is theirs.
    const isOurs = event.target === row || event.key !== "Enter";
    if (isOurs && this.#onKey?.(event, this.#rows.get(row.dataset.key).item)) event.preventDefault();
  }
}
