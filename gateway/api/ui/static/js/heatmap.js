// A map of many cells, each a deployment, in groups by host. The shade says how much; what is not well is told by
// a pattern, too. The arrow keys lead from cell to cell.

import { Painter } from "./canvas.js";
import { fill, h, setText } from "./dom.js";

const GAP = 2;
const GROUP_GAP = 7;
const SIZES = [44, 36, 28, 22, 18, 14, 11, 9, 7];
const MOST_HEIGHT = 430;
const STEPS = 5;

export class HeatMap {
  // `open(cell)` is called for a click and for Enter.
  constructor({ label, open, signal }) {
    this.open = open;
    this.cells = [];
    this.places = [];
    this.at = -1;
    this.canvas = h("canvas", { tabIndex: 0, role: "application", "aria-label": label, "aria-roledescription": "map of deployments" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.said = h("span", { class: "skip", "aria-live": "polite" });
    this.node = h("div", { class: "heat" }, this.canvas, this.tip, this.said);
    this.painter = new Painter(this.canvas, (...all) => this.draw(...all), signal);
    this.canvas.addEventListener("mousemove", (event) => this.point(this.find(event.offsetX, event.offsetY), false));
    this.canvas.addEventListener("mouseleave", () => this.point(-1, false));
    this.canvas.addEventListener("blur", () => this.point(-1, false));
    this.canvas.addEventListener("click", (event) => this.enter(this.find(event.offsetX, event.offsetY)));
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
    this.observer = new ResizeObserver(() => this.arrange());
    this.observer.observe(this.node);
    signal.addEventListener("abort", () => this.observer.disconnect());
  }

  // Cells: { key, group, share (0 to 1, or null), text, tone, words }, those of one group together.
  update(cells) {
    const key = this.cells[this.at]?.key;
    const alike = cells.length === this.cells.length && cells.every((cell, index) => cell.group === this.cells[index].group);
    this.cells = cells;
    if (alike && this.places.length === cells.length) this.painter.soon();
    else this.arrange();
    if (this.at >= 0) this.point(cells.findIndex((cell) => cell.key === key), false);
  }

  arrange() {
    const width = this.node.clientWidth;
    if (!width) return;
    for (const size of SIZES) {
      this.size = size;
      const height = this.placed(width, size);
      if (height <= MOST_HEIGHT || size === SIZES.at(-1)) {
        const wanted = `${Math.max(height, size + 2)}px`;
        if (this.canvas.style.height !== wanted) this.canvas.style.height = wanted;
        break;
      }
    }
    this.painter.fit();
  }

  placed(width, size) {
    let [x, y, group] = [1, 1, null];
    this.places = this.cells.map((cell) => {
      if (group !== null && cell.group !== group) x += GROUP_GAP;
      group = cell.group;
      if (x + size > width - 1) [x, y] = [1, y + size + GAP + (size > 14 ? 4 : 0)];
      const place = { x, y };
      x += size + GAP;
      return place;
    });
    return y + size + 2;
  }

  draw(context) {
    const { size, painter } = this;
    this.cells.forEach((cell, index) => {
      const { x, y } = this.places[index];
      const step = cell.share === null ? null : Math.min(STEPS - 1, Math.floor(cell.share * STEPS));
      context.fillStyle = step === null ? painter.colour("raised") : painter.colour(`heat-${step}`);
      context.fillRect(x, y, size, size);
      if (step === null || step === 0) {
        context.strokeStyle = painter.colour("line");
        context.lineWidth = 1;
        context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
      }
      this.pattern(context, cell, x, y);
      if (size >= 28 && cell.text) {
        context.fillStyle = painter.colour(step !== null && step >= 3 ? "heat-text-high" : "heat-text-low");
        context.font = `${size >= 36 ? 12 : 10}px system-ui, sans-serif`;
        context.textAlign = "center";
        context.textBaseline = "middle";
        context.fillText(cell.text, x + size / 2, y + size / 2, size - 3);
      }
    });
    const place = this.places[this.at];
    if (place) {
      context.strokeStyle = painter.colour("focus");
      context.lineWidth = 3;
      context.strokeRect(place.x - 0.5, place.y - 0.5, size + 1, size + 1);
    }
  }

  // Failed: a cross. Loading: a rising line. Draining: a frame.
  pattern(context, cell, x, y) {
    const { size, painter } = this;
    if (!cell.tone) return;
    const inner = Math.max(1.5, size * 0.16);
    context.strokeStyle = painter.colour(`${cell.tone}-fill`);
    context.lineWidth = Math.max(1.5, size / 11);
    context.beginPath();
    if (cell.tone === "warn") {
      context.rect(x + 1, y + 1, size - 2, size - 2);
    } else {
      context.moveTo(x + inner, y + size - inner);
      context.lineTo(x + size - inner, y + inner);
      if (cell.tone === "bad") {
        context.moveTo(x + inner, y + inner);
        context.lineTo(x + size - inner, y + size - inner);
      }
    }
    context.stroke();
  }

  find(x, y) {
    return this.places.findIndex((place) => x >= place.x && x < place.x + this.size + GAP && y >= place.y && y < place.y + this.size + GAP);
  }

  point(index, aloud) {
    this.at = index;
    const [cell, place] = [this.cells[index], this.places[index]];
    this.tip.hidden = !cell;
    if (cell) {
      setText(this.tip, cell.words);
      const beyond = place.x > this.node.clientWidth - 220;
      this.tip.style.left = beyond ? "auto" : `${place.x}px`;
      this.tip.style.right = beyond ? "0" : "auto";
      this.tip.style.top = `${place.y + this.size + 6}px`;
      if (aloud) setText(this.said, cell.words);
    }
    this.painter.soon();
  }

  enter(index) {
    if (this.cells[index]) this.open(this.cells[index]);
  }

  onKey(event) {
    const moves = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    const { key } = event;
    if (key === "Enter") this.enter(this.at);
    else if (key in moves) this.point(Math.max(0, Math.min(this.cells.length - 1, Math.max(this.at, 0) + moves[key] - (this.at < 0 ? 1 : 0))), true);
    else if (key === "ArrowDown" || key === "ArrowUp") this.point(this.below(key === "ArrowDown" ? 1 : -1), true);
    else return;
    event.preventDefault();
  }

  below(direction) {
    const from = this.places[Math.max(this.at, 0)];
    if (!from) return -1;
    const rows = [...new Set(this.places.map((place) => place.y))];
    const y = rows[rows.indexOf(from.y) + direction];
    if (y === undefined) return this.at;
    let best = this.at;
    this.places.forEach((place, index) => {
      if (place.y === y && (best === this.at || Math.abs(place.x - from.x) < Math.abs(this.places[best].x - from.x))) best = index;
    });
    return best;
  }
}

export function legend(low, high) {
  const steps = h("span", { class: "steps", "aria-hidden": "true" }, Array.from({ length: STEPS }, () => h("i")));
  const node = h("div", { class: "legend" });
  return fill(node, h("span", { class: "scale" }, low, steps, high),
    h("span", {}, "✕ failed or away"), h("span", {}, "╱ loading"), h("span", {}, "▢ draining, or not used for now"));
}
