// A table that keeps its row elements while values change. It can be sorted, filtered and navigated with the
// arrow keys.

import { element } from "./words.js";

/** Compares names with numbers by value: gpu-9 comes before gpu-10. */
const COLLATOR = new Intl.Collator("en", { numeric: true });

/** Number of rows that a folded table shows for comparison below the rows with a level. */
const EXTRA_ROWS = 4;

/**
 * A column has a `name`, a `title` for its header, and a `value` of a row to sort and filter by. It also has
 * either `text` of a row, or `make` and `show` for a custom cell; `prepare` gets all rows before they are shown.
 * `optional`: hidden while it is empty, or while `isUseful` of all rows is false. `order`: the value to sort by, if it
 * differs from `value`.
 *
 * The link of the class `lead` in a row opens its details: a click anywhere in the row, a touch and Enter follow it.
 * `level` of an item is the class of its row, or "". A table with more rows than `foldAbove` shows the rows with a
 * level and a few others. A button shows the rest.
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
  #emptyText;
  #note = element("span", "quiet");
  #heads = new Map();
  #onKey;
  #level;
  #foldAbove;
  #isFolded = true;
  #fold = element("button", "fold");

  constructor(section, { id, title, columns, key, sort, empty, onKey, level = () => "", foldAbove = Infinity }) {
    [this.#columns, this.#key, this.#sort, this.#onKey] = [columns, key, sort, onKey];
    [this.#level, this.#foldAbove] = [level, foldAbove];
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
    this.#emptyText = empty;
    this.#empty = element("p", "empty");
    frame.append(table, this.#empty);
    Object.assign(this.#fold, { type: "button", hidden: true });
    this.#fold.addEventListener("click", () => {
      this.#isFolded = !this.#isFolded;
      this.#arrange();
    });
    section.append(line, frame, this.#fold);
    this.#body.addEventListener("keydown", (event) => this.#onKeydown(event));
    this.#body.addEventListener("click", (event) => {
      // A click that ends a text selection must not open the details.
      if (!event.target.closest("a, button") && getSelection().isCollapsed) openRow(event.target.closest("tr"));
    });
    this.#body.addEventListener("focusin", (event) => this.#select(event.target.closest("tr")));
  }

  #head() {
    const row = element("tr");
    for (const column of this.#columns) {
      const cell = element("th", column.className);
      cell.scope = "col";
      const button = element("button", "", column.title);
      button.type = "button";
      if (column.hint) button.title = column.hint;
      if (column.isTitleHidden) button.className = "hidden-title";
      button.addEventListener("click", () => this.sortBy(column.name));
      cell.append(button);
      row.append(cell);
      this.#heads.set(column.name, cell);
    }
    const head = element("thead");
    head.append(row);
    return head;
  }

  /** Sorts by a column. Sorting by the same column again reverses the order. */
  sortBy(name) {
    const again = this.#sort.name === name;
    const first = this.#columns.find((column) => column.name === name)?.first ?? "up";
    const other = this.#sort.order === "up" ? "down" : "up";
    this.#sort = { name, order: again ? other : first };
    this.#arrange();
  }

  /** Sorts by the column after the current sort column. */
  sortByNext() {
    const names = this.#columns.map((column) => column.name);
    this.sortBy(names[(names.indexOf(this.#sort.name) + 1) % names.length]);
  }

  set filter(text) {
    this.#filter = text.trim().toLowerCase();
    this.#arrange();
  }

  set note(text) {
    this.#note.textContent = text;
  }

  /** The item of the selected row. */
  get selected() {
    const row = this.#body.querySelector("tr[tabindex='0']");
    return row && this.#rows.get(row.dataset.key)?.item;
  }

  /** Moves the focus to the selected row, or to the header if there are no rows. */
  focus() {
    const row = this.#body.querySelector("tr[tabindex='0']");
    (row ?? this.section.querySelector("th button")).focus();
  }

  update(items) {
    this.#items = items;
    const keys = new Set(items.map((item) => String(this.#key(item))));
    for (const [key, { row }] of this.#rows) {
      if (keys.has(key)) continue;
      if (row.contains(document.activeElement)) this.#moveFocusFrom(row);
      row.remove();
      this.#rows.delete(key);
    }
    for (const column of this.#columns) column.prepare?.(items);
    for (const item of items) this.#show(item);
    this.#hideEmpty();
    this.#arrange();
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
      // The row gets the focus instead of its link.
      for (const link of row.querySelectorAll("a.lead")) link.tabIndex = -1;
      known = { row, cells };
      this.#rows.set(key, known);
    }
    known.item = item;
    known.row.className = this.#level(item);
    this.#columns.forEach((column, index) => {
      const cell = known.cells[index];
      if (column.show) column.show(cell, item);
      else {
        const text = column.text(item);
        if (cell.textContent !== text) cell.textContent = text;
      }
    });
  }

  /** Hides optional columns without values. */
  #hideEmpty() {
    this.#columns.forEach((column, index) => {
      if (!column.optional) return;
      const hidden = column.isUseful ? !column.isUseful(this.#items) : !this.#items.some((item) => column.value(item));
      this.#heads.get(column.name).hidden = hidden;
      for (const { cells } of this.#rows.values()) cells[index].hidden = hidden;
    });
  }

  #arrange() {
    const column = this.#columns.find((one) => one.name === this.#sort.name);
    const direction = this.#sort.order === "up" ? 1 : -1;
    const compare = (a, b) => {
      const value = column.order ?? column.value;
      const [left, right] = [value(a), value(b)];
      if (left === right) return COLLATOR.compare(String(this.#key(a)), String(this.#key(b)));
      // Unknown values are last.
      if (left === null || left === undefined) return 1;
      if (right === null || right === undefined) return -1;
      if (typeof left === "string") return COLLATOR.compare(left, String(right)) * direction;
      return (left < right ? -1 : 1) * direction;
    };
    const matches = (item) => {
      const values = this.#columns.map((one) => one.value(item) ?? "");
      return values.some((value) => String(value).toLowerCase().includes(this.#filter));
    };
    const shown = this.#foldRows(this.#items.filter(matches).sort(compare));
    const rows = shown.map((item) => this.#rows.get(String(this.#key(item))).row);
    const focused = document.activeElement;
    for (const { row } of this.#rows.values()) if (!rows.includes(row)) row.remove();
    rows.forEach((row, index) => {
      if (this.#body.children[index] !== row) {
        this.#body.insertBefore(row, this.#body.children[index] ?? null);
      }
    });
    if (focused !== document.activeElement && focused.isConnected) focused.focus();
    if (rows.length > 0 && !rows.some((row) => row.tabIndex === 0)) this.#select(rows[0]);
    else this.#updateTabStops();
    this.#empty.hidden = rows.length > 0;
    this.#empty.textContent = this.#items.length > 0 ? "No row matches the filter." : this.#emptyText;
    for (const [name, head] of this.#heads) {
      const order = this.#sort.order === "up" ? "ascending" : "descending";
      head.setAttribute("aria-sort", name === this.#sort.name ? order : "none");
    }
  }

  /** Returns the sorted items that are shown. Updates the button that shows the rest. */
  #foldRows(items) {
    const marked = items.filter((item) => this.#level(item) !== "").length;
    const limit = Math.max(this.#foldAbove, marked + EXTRA_ROWS);
    const isLong = this.#filter === "" && items.length > limit;
    this.#fold.hidden = !isLong;
    this.#fold.textContent = this.#isFolded ? `Show ${items.length - limit} more` : "Show fewer";
    this.#fold.setAttribute("aria-expanded", String(!this.#isFolded));
    return isLong && this.#isFolded ? items.slice(0, limit) : items;
  }

  #select(row) {
    if (!row) return;
    for (const other of this.#body.children) other.tabIndex = other === row ? 0 : -1;
    this.#updateTabStops();
  }

  /** Lets Tab reach the links and buttons of the selected row only. */
  #updateTabStops() {
    for (const row of this.#body.children) {
      for (const inner of row.querySelectorAll("a:not(.lead), button")) inner.tabIndex = row.tabIndex;
    }
  }

  /** Moves the focus from a row that is removed to its neighbour. */
  #moveFocusFrom(row) {
    const next = row.nextElementSibling ?? row.previousElementSibling;
    this.#select(next);
    next?.focus();
  }

  #onKeydown(event) {
    const row = event.target.closest("tr");
    const rows = [...this.#body.children];
    const index = rows.indexOf(row);
    const target = {
      ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: rows.length - 1,
    }[event.key];
    if (target !== undefined) {
      rows[Math.min(Math.max(target, 0), rows.length - 1)]?.focus();
      event.preventDefault();
      return;
    }
    if (event.key !== "Enter") {
      if (this.#onKey?.(event, this.#rows.get(row.dataset.key).item)) event.preventDefault();
    } else if (event.target === row) {
      // A link or a button in the row handles Enter itself.
      openRow(row);
    }
  }
}

const openRow = (row) => row?.querySelector("a.lead")?.click();
