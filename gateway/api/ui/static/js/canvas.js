// Canvases that are as sharp as the screen and drawn when something has changed, at most once for each frame.

import { colour } from "./dom.js";

export class Painter {
  constructor(canvas, draw, signal) {
    Object.assign(this, { canvas, draw, signal });
    this.observer = new ResizeObserver(() => this.fit());
    this.observer.observe(canvas);
    document.addEventListener("tl-theme", () => ((this.colours = null), this.soon()), { signal });
    signal.addEventListener("abort", () => this.observer.disconnect());
  }

  fit() {
    const { clientWidth, clientHeight } = this.canvas;
    const scale = window.devicePixelRatio || 1;
    const [width, height] = [Math.round(clientWidth * scale), Math.round(clientHeight * scale)];
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    this.soon();
  }

  soon() {
    if (this.waiting || this.signal.aborted) return;
    this.waiting = true;
    requestAnimationFrame((nowMs) => {
      this.waiting = false;
      this.now(nowMs);
    });
  }

  now(nowMs = performance.now()) {
    const context = this.canvas.getContext("2d");
    const scale = window.devicePixelRatio || 1;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    const { clientWidth: width, clientHeight: height } = this.canvas;
    context.clearRect(0, 0, width, height);
    this.draw(context, width, height, nowMs);
  }

  // Of the theme, by name; read once for each theme.
  colour(name) {
    this.colours ??= new Map();
    if (!this.colours.has(name)) this.colours.set(name, colour(name));
    return this.colours.get(name);
  }
}
