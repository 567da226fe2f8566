// A line over the last minutes, with its newest value in words.

import { Painter } from "./canvas.js";
import { h, setText } from "./dom.js";

export class Chart {
  // `format` makes words of a value; `most` is the top of the scale, or null for that of the values.
  constructor(title, { format, most = null, signal }) {
    Object.assign(this, { format, most });
    this.series = null;
    this.words = h("span", { class: "number" });
    this.canvas = h("canvas", { class: "chart", role: "img" });
    this.title = title;
    this.node = h("figure", {}, h("figcaption", {}, h("span", {}, title), this.words), this.canvas);
    this.painter = new Painter(this.canvas, (...all) => this.draw(...all), signal);
  }

  update(series) {
    this.series = series;
    const last = series ? this.format(series.last) : "–";
    setText(this.words, last);
    this.canvas.setAttribute("aria-label", `${this.title}, now ${last}`);
    this.painter.soon();
  }

  draw(context, width, height) {
    const values = this.series ? [...this.series] : [];
    const top = this.most ?? Math.max(1, ...values.filter(Number.isFinite).map((value) => value * 1.15));
    const [left, bottom] = [0, height - 1];
    context.strokeStyle = this.painter.colour("line");
    context.lineWidth = 1;
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = this.painter.colour("dim");
    for (const share of [0, 0.5, 1]) {
      const y = Math.round(bottom - share * (height - 14)) + 0.5;
      context.beginPath();
      context.moveTo(left, y);
      context.lineTo(width, y);
      context.stroke();
      if (share) context.fillText(this.format(top * share), 2, y - 3);
    }
    const step = width / Math.max(1, (this.series?.values.length ?? 2) - 1);
    const first = width - (values.length - 1) * step;
    const line = new Path2D();
    const area = new Path2D();
    let start = null;
    values.forEach((value, index) => {
      const x = first + index * step;
      if (!Number.isFinite(value)) {
        if (start !== null) area.lineTo(x - step, bottom);
        start = null;
        return;
      }
      const y = bottom - Math.min(1, value / top) * (height - 14);
      if (start === null) {
        start = x;
        line.moveTo(x, y);
        area.moveTo(x, bottom);
      }
      line.lineTo(x, y);
      area.lineTo(x, y);
      if (index === values.length - 1) area.lineTo(x, bottom);
    });
    context.globalAlpha = 0.16;
    context.fillStyle = this.painter.colour("heat-3");
    context.fill(area);
    context.globalAlpha = 1;
    context.strokeStyle = this.painter.colour("heat-3");
    context.lineWidth = 1.6;
    context.stroke(line);
  }
}
