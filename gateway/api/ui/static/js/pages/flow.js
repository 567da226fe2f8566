// Requests on their way from tiers through the queue to deployments, as they happen.

import { Painter } from "../canvas.js";
import { h, setText } from "../dom.js";
import { FlowScene, NARROW, REST } from "../flowscene.js";
import { count, seconds } from "../format.js";
import { live } from "../live.js";
import { Page } from "../page.js";
import { panel } from "../parts.js";
import { go } from "../router.js";

const NEAR = 14;
const DOT = 3.6;

export class FlowPage extends Page {
  build() {
    const { signal } = this.left;
    this.scene = new FlowScene();
    this.still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    // What stands is drawn once for each delta, below; what moves, for each frame of the screen, above it.
    this.ground = h("canvas", { "aria-hidden": "true" });
    this.canvas = h("canvas", { class: "moving", role: "img", "aria-label": "Requests from tiers through models' queues to deployments. The page Requests lists the same." });
    this.painter = new Painter(this.ground, (...all) => this.drawGround(...all), signal);
    this.mover = new Painter(this.canvas, (...all) => this.drawMoving(...all), signal);
    this.moving = [];
    this.canvas.addEventListener("click", (event) => this.open(event.offsetX, event.offsetY));
    this.canvas.addEventListener("mousemove", (event) => (this.canvas.style.cursor = this.near(event.offsetX, event.offsetY) ? "pointer" : "default"));
    live.addEventListener("frame", (event) => this.take(event.detail), { signal });
    this.said = h("p", { class: "small dim" });
    this.append(h("div", { class: "topline" }, h("h1", {}, "Flow")), panel(null, h("div", { class: "flow" }, this.ground, this.canvas)), this.said,
      h("p", { class: "small dim" }, "A dot is a request: blue while it runs, then green if it was answered, orange if its client left, red if it failed. A click on one opens its decision record."));
    this.scene.snapshot(live.requests.values(), live.state);
    this.scene.prune(live.state);
  }

  take({ said, whole }) {
    if (whole) this.scene.snapshot(live.requests.values(), live.state);
    else this.scene.take(said, live.state, performance.now());
    this.painter.soon();
    this.mover.soon();
  }

  update() {
    const words = live.status.kind === "polling" ? "Without the live stream only sums are known here, and no single requests." : this.scene.lost ? `${count(this.scene.lost)} requests came too fast to be drawn.` : "";
    setText(this.said, words);
  }

  drawGround(context, width, height) {
    const { size } = this.scene;
    if (size.width !== width || size.height !== height) this.scene.arrange(live.state, { width, height });
    context.textBaseline = "middle";
    this.drawHeads(context, width);
    for (const node of this.scene.nodes.values()) this.drawNode(context, node, width);
    this.drawDots(context, this.painter, this.scene.standing);
    if (live.frames > 0 && Object.keys(live.state.deployments).length === 0) this.drawEmpty(context, width, height);
  }

  drawMoving(context, width, height, nowMs) {
    if (!this.scene.size.width) return; // the ground is drawn first
    this.moving = this.scene.at(nowMs);
    this.drawDots(context, this.mover, this.moving);
    if (this.scene.particles.length && !this.still) this.mover.soon();
  }

  // Those of one colour at once; those that fade are each of their own.
  drawDots(context, painter, dots) {
    const steady = new Map();
    for (const dot of dots) {
      if (dot.fading) {
        context.globalAlpha = 1 - dot.fading;
        context.fillStyle = painter.colour(dot.colour);
        context.beginPath();
        context.arc(dot.x, dot.y, DOT + dot.fading * 9, 0, 7);
        context.fill();
      } else {
        if (!steady.has(dot.colour)) steady.set(dot.colour, new Path2D());
        const path = steady.get(dot.colour);
        path.moveTo(dot.x + DOT, dot.y);
        path.arc(dot.x, dot.y, DOT, 0, 2 * Math.PI);
      }
    }
    context.globalAlpha = 1;
    for (const [colour, path] of steady) {
      context.fillStyle = painter.colour(colour);
      context.fill(path);
    }
  }

  drawEmpty(context, width, height) {
    context.font = "14px system-ui, sans-serif";
    context.fillStyle = this.painter.colour("dim");
    context.textAlign = "center";
    context.fillText(fitted(context, "Nothing is served yet: no host has joined.", width * 0.65), width * 0.63, height / 2);
  }

  drawHeads(context, width) {
    context.font = "600 13px system-ui, sans-serif";
    context.fillStyle = this.painter.colour("dim");
    context.textAlign = "left";
    const columns = new Map([...this.scene.nodes.values()].map((node) => [node.kind, node.x]));
    for (const [kind, title] of [["tier", "Tier"], ["model", width < NARROW ? "Queue" : "Queue of the model"], ["deployment", "Deployment"]]) {
      if (columns.has(kind)) context.fillText(title, columns.get(kind) - 6, 14);
    }
  }

  drawNode(context, node, width) {
    const { kind, each, x, y } = node;
    const painter = this.painter;
    context.fillStyle = painter.colour(kind === "deployment" && each.status === "failed" ? "bad-fill" : "heat-3");
    context.beginPath();
    context.arc(x, y, kind === "tier" ? 6 : 5, 0, 7);
    context.fill();
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = painter.colour("text");
    context.textAlign = "left";
    const right = kind === "tier" ? width * 0.28 : kind === "model" ? width * 0.28 : width * 0.31 - 14;
    const name = node.name === REST ? each.name : kind === "deployment" ? `${each.agent} · ${each.model}` : node.name;
    context.fillText(fitted(context, name, right), x + 12, y - 8);
    if (kind === "tier" || node.name === REST) return;
    context.fillStyle = painter.colour("dim");
    const words = kind === "model" ? queueWords(each) : slotWords(each);
    if (kind === "model" || node.step > 30) context.fillText(fitted(context, words, right), x + 12, y + 8);
    if (kind === "model" && each.waiting) {
      context.fillStyle = painter.colour("warn-fill");
      const long = Math.min(90, 4 + each.waiting * 4);
      context.fillRect(x - 10 - long, y - 4, long, 8);
    }
  }

  near(x, y) {
    let [found, best] = [null, NEAR * NEAR];
    for (const dot of [...this.scene.standing, ...this.moving]) {
      const distance = (dot.x - x) ** 2 + (dot.y - y) ** 2;
      if (distance < best) [found, best] = [dot, distance];
    }
    return found;
  }

  open(x, y) {
    const dot = this.near(x, y);
    if (dot) go("request", dot.id);
  }
}

function slotWords(deployment) {
  if (deployment.status === "loadable") return "not loaded";
  return deployment.status === "loaded" ? `${count(deployment.in_flight)} of ${count(deployment.slots)} slots` : deployment.status;
}

function queueWords(model) {
  if (!model.waiting) return `${count(model.in_flight)} running, none waiting`;
  return `${count(model.waiting)} waiting${model.oldest_s ? `, the first for ${seconds(model.oldest_s)}` : ""}`;
}

function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let cut = text;
  while (cut.length > 1 && context.measureText(`${cut}…`).width > width) cut = cut.slice(0, -1);
  return `${cut}…`;
}
