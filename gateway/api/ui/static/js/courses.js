// Courses over time that are compared: each a line with a colour and a dash of its own, with axes and units. The
// arrow keys lead from point to point, and the values there are told in words.

import { Painter } from "./canvas.js";
import { h, setText } from "./dom.js";

const [LEFT, RIGHT, TOP, BOTTOM] = [58, 12, 10, 30];
const STEPS = [1, 2, 5, 10];

export class Courses {
  // Lines: { name, colour (a name of the style sheet), dash, width }.
  constructor({ label, lines, signal }) {
    Object.assign(this, { label, lines, at: -1, values: new Map(), times: [] });
    this.canvas = h("canvas", { tabIndex: 0, role: "application", "aria-label": label, "aria-roledescription": "plot" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.said = h("span", { class: "skip", "aria-live": "polite" });
    this.node = h("div", { class: "courses" }, this.canvas, this.tip, this.said, this.legend(signal));
    this.painter = new Painter(this.canvas, (...all) => this.draw(...all), signal);
    this.canvas.addEventListener("mousemove", (event) => this.point(this.find(event.offsetX), false));
    this.canvas.addEventListener("mouseleave", () => this.point(-1, false));
    this.canvas.addEventListener("blur", () => this.point(-1, false));
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
  }

  // `values` are lists by the names of the lines, null where nothing is known; `time` and `format` make words.
  update({ title, values, count, time, format }) {
    Object.assign(this, { title, values, count, time, format, at: -1 });
    this.top = topOf(Math.max(0, ...this.lines.flatMap(({ name }) => (values[name] ?? []).filter(Number.isFinite))));
    this.canvas.setAttribute("aria-label", `${this.label}: ${title}. ${this.most()}`);
    this.point(-1, false);
  }

  most() {
    return this.lines.map(({ name, words }) => {
      const known = (this.values[name] ?? []).filter(Number.isFinite);
      return known.length ? `${words}: at most ${this.format(Math.max(...known))}` : `${words}: nothing`;
    }).join("; ");
  }

  legend(signal) {
    return h("div", { class: "legend" }, this.lines.map((line) => {
      const sample = h("canvas", { class: "sample", "aria-hidden": "true" });
      const painter = new Painter(sample, (context, width, height) => {
        this.pen(context, line, painter);
        context.beginPath();
        context.moveTo(0, height / 2);
        context.lineTo(width, height / 2);
        context.stroke();
      }, signal);
      return h("span", { class: "inline" }, sample, line.words);
    }));
  }

  pen(context, { colour, dash, width }, painter = this.painter) {
    context.strokeStyle = painter.colour(colour);
    context.lineWidth = width;
    context.setLineDash(dash);
    context.lineJoin = "round";
  }

  x(index, width) {
    return LEFT + (this.count > 1 ? index / (this.count - 1) : 0.5) * (width - LEFT - RIGHT);
  }

  y(value, height) {
    return height - BOTTOM - (value / this.top) * (height - BOTTOM - TOP);
  }

  draw(context, width, height) {
    if (!this.count) return;
    this.axes(context, width, height);
    for (const line of this.lines) {
      const values = this.values[line.name] ?? [];
      this.pen(context, line);
      context.beginPath();
      values.forEach((value, index) => {
        if (!Number.isFinite(value)) return;
        const [x, y] = [this.x(index, width), this.y(value, height)];
        if (Number.isFinite(values[index - 1])) context.lineTo(x, y);
        else context.moveTo(x, y);
        if (!Number.isFinite(values[index - 1]) && !Number.isFinite(values[index + 1])) context.lineTo(x + 2, y);
      });
      context.stroke();
    }
    context.setLineDash([]);
    if (this.at >= 0) {
      context.strokeStyle = this.painter.colour("focus");
      context.lineWidth = 1;
      const x = Math.round(this.x(this.at, width)) + 0.5;
      context.beginPath();
      context.moveTo(x, TOP);
      context.lineTo(x, height - BOTTOM);
      context.stroke();
    }
  }

  axes(context, width, height) {
    context.setLineDash([]);
    context.font = "12px system-ui, sans-serif";
    context.strokeStyle = this.painter.colour("line");
    context.fillStyle = this.painter.colour("dim");
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      const y = Math.round(this.y(this.top * share, height)) + 0.5;
      context.beginPath();
      context.moveTo(LEFT, y);
      context.lineTo(width - RIGHT, y);
      context.stroke();
      context.fillText(this.format(this.top * share), LEFT - 6, y);
    }
    context.textBaseline = "top";
    const shown = Math.max(2, Math.min(7, Math.floor((width - LEFT - RIGHT) / 115)));
    for (let mark = 0; mark < shown; mark++) {
      const index = Math.round((mark / (shown - 1)) * (this.count - 1));
      context.textAlign = mark === 0 ? "left" : mark === shown - 1 ? "right" : "center";
      context.fillText(this.time(index), this.x(index, width), height - BOTTOM + 8);
    }
  }

  find(x) {
    const width = this.canvas.clientWidth;
    const share = (x - LEFT) / Math.max(1, width - LEFT - RIGHT);
    return share < -0.05 || share > 1.05 ? -1 : Math.max(0, Math.min(this.count - 1, Math.round(share * (this.count - 1))));
  }

  point(index, aloud) {
    this.at = index;
    this.tip.hidden = index < 0 || !this.count;
    if (!this.tip.hidden) {
      const words = [this.time(index), ...this.lines.map(({ name, words: of }) => `${of}: ${this.format(this.values[name]?.[index])}`)];
      setText(this.tip, words.join("\n"));
      if (aloud) setText(this.said, words.join(", "));
      const x = this.x(index, this.canvas.clientWidth);
      const beyond = x > this.canvas.clientWidth - 220;
      this.tip.style.left = beyond ? "auto" : `${x + 8}px`;
      this.tip.style.right = beyond ? `${this.canvas.clientWidth - x + 8}px` : "auto";
      this.tip.style.top = `${TOP}px`;
    }
    this.painter.soon();
  }

  onKey(event) {
    const moves = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    if (!(event.key in moves) || !this.count) return;
    const from = this.at < 0 ? (moves[event.key] > 0 ? -1 : this.count) : this.at;
    this.point(Math.max(0, Math.min(this.count - 1, from + moves[event.key])), true);
    event.preventDefault();
  }
}

// The next round number from `most` on.
export function topOf(most) {
  if (!(most > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return STEPS.map((step) => step * power).find((value) => value >= most);
}
