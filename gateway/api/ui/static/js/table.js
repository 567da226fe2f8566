// Tables that are sorted by their heads, show a bounded number of rows, and change only the rows that changed.

import { fill, h } from "./dom.js";
import { compareNames } from "./format.js";
import { empty } from "./parts.js";

const ROWS = 100;
const FOCUSABLE = "a, button, input";

// Columns: { title, value(row) for sorting, cell(row) as text or node, number }. Until it was told of rows it is not
// said to have none.
export class Table {
  constructor({ columns, key, sort = null, descending = false, whenEmpty = ["Nothing here", ""], caption }) {
    Object.assign(this, { columns, key, sort, descending, whenEmpty, most: ROWS, rows: null, shown: new Map(), untouched: true });
    this.heads = columns.map((column, index) => this.head(column, index));
    this.body = h("tbody");
    this.table = h("table", {}, caption && h("caption", { class: "skip" }, caption), h("thead", {}, h("tr", {}, this.heads)), this.body);
    this.more = h("button", { type: "button", on: { click: () => ((this.most *= 4), this.render()) } });
    this.rest = h("p", { class: "small dim" }, "", this.more);
    this.nothing = h("div");
    this.node = h("div", {}, h("div", { class: "scroll" }, this.table), this.rest, this.nothing);
    this.render();
  }

  head(column, index) {
    const turn = () => {
      this.descending = this.sort === index ? !this.descending : Boolean(column.number);
      this.sort = index;
      this.untouched = false;
      this.render();
    };
    const title = column.value ? h("button", { type: "button", on: { click: turn } }, column.title) : column.title;
    return h("th", { scope: "col", class: column.number ? "number" : null }, title);
  }

  update(rows) {
    this.rows = rows;
    this.render();
  }

  render() {
    this.heads.forEach((head, index) => {
      if (index !== this.sort) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", this.descending ? "descending" : "ascending");
    });
    const sorted = this.sorted();
    const visible = sorted.slice(0, this.most);
    const wanted = new Set(visible.map((row) => String(this.key(row))));
    // First of all, so that those behind them stay in place, and in focus.
    for (const [key, line] of this.shown) if (!wanted.has(key)) line.node.remove();
    this.pressed = this.body.querySelector("button:active, input:active")?.closest("td");
    const kept = new Map();
    let place = this.body.firstChild;
    for (const row of visible) {
      const key = String(this.key(row));
      if (kept.has(key)) continue;
      const line = this.line(key, row);
      kept.set(key, line);
      if (line.node === place) place = place.nextSibling;
      else this.body.insertBefore(line.node, place);
    }
    this.shown = kept;
    this.table.hidden = sorted.length === 0;
    this.rest.hidden = sorted.length <= this.most;
    this.more.textContent = `Show more of the ${sorted.length} rows`;
    fill(this.nothing, this.rows?.length === 0 && empty(...this.whenEmpty));
  }

  sorted() {
    const column = this.columns[this.sort];
    const rows = this.rows ?? [];
    if (!column?.value) return rows;
    const sign = this.descending ? -1 : 1;
    return [...rows].sort((a, b) => sign * compared(column.value(a), column.value(b)));
  }

  // A row that looks as before stays as it is. Of another, so do the cells that look as before and do nothing: a
  // button's listener knows the row it was made with. One that is being pressed is replaced the next time.
  line(key, row) {
    const cells = this.columns.map((column) => column.cell(row) ?? "–");
    const marks = cells.map((cell) => (cell instanceof Node ? markOf(cell) : String(cell)));
    const line = this.shown.get(key) ?? { marks: [], node: h("tr", {}, this.columns.map((column) => h("td", { class: column.number ? "number" : null }))) };
    if (marks.every((mark, index) => mark === line.marks[index])) return line;
    cells.forEach((cell, index) => {
      const place = line.node.children[index];
      if (place === this.pressed) {
        marks[index] = null;
        return;
      }
      if (line.marks[index] === marks[index] && !place.querySelector("button, input")) return;
      const focused = place.contains(document.activeElement) ? [...place.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement) : -1;
      fill(place, cell);
      place.querySelectorAll(FOCUSABLE)[focused]?.focus();
    });
    line.marks = marks;
    return line;
  }
}

// What can be seen of a cell: two with one mark look alike and do the same.
function markOf(node) {
  const bars = [...(node.querySelectorAll?.(".meter > i") ?? [])].map((bar) => bar.style.transform);
  const places = [node, ...(node.querySelectorAll?.("a") ?? [])].map((each) => each.getAttribute?.("href") ?? "");
  const off = [...(node.querySelectorAll?.(":disabled") ?? [])].length;
  return [node.textContent, node.className, ...bars, ...places, off].join("\u0001");
}

function compared(a, b) {
  const [none, other] = [a === null || a === undefined || Number.isNaN(a), b === null || b === undefined || Number.isNaN(b)];
  if (none || other) return Number(none) - Number(other);
  return typeof a === "number" && typeof b === "number" ? a - b : compareNames(String(a), String(b));
}
