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

  // Its size is read here only: asked for while a page is being changed, it would have all of it laid out at once.
  fit() {
    const { clientWidth, clientHeight } = this.canvas;
    const scale = window.devicePixelRatio || 1;
    const [width, height] = [Math.round(clientWidth * scale), Math.round(clientHeight * scale)];
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    this.size = { width: clientWidth, height: clientHeight, scale };
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
    if (!this.size) return; // it is told once it is laid out
    const { width, height, scale } = this.size;
    const context = this.canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
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
