// What the page Flow draws: where tiers, models and deployments stand, and the requests on their way between them.
// Pure figures, without a canvas.

import { compareNames } from "./format.js";

const MOST_PARTICLES = 400;
const MOST_MODELS = 12;
const MOST_DEPLOYMENTS = 24;
const LEG_MS = 700;
export const NARROW = 600;
export const TIERS = ["realtime", "standard", "batch"];
export const REST = "\u0000rest";

export class FlowScene {
  constructor() {
    this.nodes = new Map(); // key → { x, y, column, … }
    this.size = { width: 0, height: 0 };
    this.standing = []; // dots of requests that run
    this.particles = [];
    this.running = new Map(); // request id → { node, request }
    this.lost = 0; // requests that were not drawn, because there were too many at once
  }

  // Place everything for a canvas of this size. Busy models and deployments come first; the others are one. Costs
  // what there is to be sorted, so it is done once for each delta and not for each frame of the screen.
  arrange(state, { width, height } = this.size) {
    this.size = { width, height };
    const models = busiest(state.models, (each) => (each.in_flight ?? 0) + 4 * (each.waiting ?? 0), MOST_MODELS);
    const deployments = busiest(state.deployments, (each) => (each.in_flight ?? 0) + (each.usable ? 0.5 : 0), MOST_DEPLOYMENTS);
    this.nodes = new Map();
    this.column("tier", TIERS.map((tier) => [tier, {}]), width * 0.03 + 10, height);
    this.column("model", models, width * 0.36, height);
    this.column("deployment", deployments, width * 0.68, height);
    for (const particle of this.particles) this.lead(particle);
    this.standing = this.dots();
  }

  column(kind, entries, x, height) {
    const room = height - 56;
    entries.forEach(([name, each], index) => {
      const y = 40 + (room * (index + 0.5)) / entries.length;
      this.nodes.set(`${kind} ${name}`, { kind, name, x, y, step: room / entries.length, each });
    });
  }

  node(kind, name) {
    return this.nodes.get(`${kind} ${name}`) ?? this.nodes.get(`${kind} ${REST}`) ?? null;
  }

  // Take up what happened in one delta, which `state` knows of already.
  take(said, state, nowMs) {
    this.at(nowMs); // nothing is drawn while the page cannot be seen, and what has arrived meanwhile takes no room
    this.arrange(state);
    for (const request of said.requests ?? []) this.happened(request, nowMs + Math.random() * 800);
    if (said.requests_left_out) {
      this.lost += said.requests_left_out;
      this.prune(state);
    }
    this.standing = this.dots();
  }

  snapshot(requests, state) {
    this.running.clear();
    for (const request of requests) if (request.state === "running") this.note(request);
    this.arrange(state);
  }

  // Of more requests than their deployment has, the oldest are over: the ends of some were not told.
  prune(state) {
    const found = new Map();
    for (const [id, { deployment }] of [...this.running].reverse()) {
      found.set(deployment, (found.get(deployment) ?? 0) + 1);
      if (found.get(deployment) > (state.deployments[deployment]?.in_flight ?? 0)) this.running.delete(id);
    }
  }

  note(request) {
    this.running.set(request.id, request);
    if (this.running.size > 1000) this.running.delete(this.running.keys().next().value);
  }

  happened(request, atMs) {
    const { event } = request;
    const known = this.running.has(request.id);
    const [tier, model, deployment] = [this.node("tier", request.tier), this.node("model", request.model), this.node("deployment", request.deployment)];
    if (event === "begun") {
      const placed = request.state === "running";
      this.launch(request, placed ? [tier, model, deployment] : [tier, model], atMs, "info-fill");
      if (placed) this.note(request);
    } else if (event === "placed") {
      this.launch(request, [model, deployment], atMs, "info-fill");
      this.note(request);
    } else if (event === "ended") {
      this.running.delete(request.id);
      const colour = request.state === "failed" ? "bad-fill" : request.state === "cancelled" ? "warn-fill" : "good-fill";
      this.launch(request, known ? [deployment] : [tier, model, deployment], atMs, colour, true);
    }
  }

  launch(request, nodes, atMs, colour, ends = false) {
    const path = nodes.filter(Boolean).map(({ kind, name }) => `${kind} ${name}`);
    if (path.length === 0) return;
    if (this.particles.length >= MOST_PARTICLES) {
      this.lost += 1;
      return;
    }
    const particle = { id: request.id, path, atMs, colour, ends };
    this.lead(particle);
    this.particles.push(particle);
  }

  // Along the nodes as they stand now; those that are shown no more are passed over.
  lead(particle) {
    particle.nodes = particle.path.map((key) => this.nodes.get(key)).filter(Boolean);
  }

  // Where each particle is now, as { id, x, y, colour, fading }; those that have arrived are forgotten.
  at(nowMs) {
    const shown = [];
    this.particles = this.particles.filter((particle) => {
      const { nodes } = particle;
      const legs = nodes.length - 1;
      const passed = (nowMs - particle.atMs) / LEG_MS;
      if (passed < 0) return true;
      if (legs < 0 || passed >= legs + (particle.ends ? 1 : 0)) return false;
      const leg = Math.min(Math.floor(passed), Math.max(0, legs - 1));
      const [from, to] = [nodes[leg], nodes[Math.min(leg + 1, legs)]];
      const share = legs === 0 ? 1 : Math.min(1, passed - leg);
      const eased = share * share * (3 - 2 * share);
      const fading = passed > legs ? passed - legs : 0;
      shown.push({ id: particle.id, x: from.x + (to.x - from.x) * eased, y: from.y + (to.y - from.y) * eased, colour: particle.colour, fading });
      return true;
    });
    return shown;
  }

  // Requests that run, as dots beside their deployment; below its words where there is no room beside it.
  dots() {
    const narrow = this.size.width < NARROW;
    const counts = new Map();
    const shown = [];
    for (const request of this.running.values()) {
      const node = this.node("deployment", request.deployment);
      if (!node) continue;
      const place = counts.get(node) ?? 0;
      counts.set(node, place + 1);
      if (place >= (narrow ? 12 : 24)) continue;
      const [across, down] = [(place % 12) * 8, Math.floor(place / 12) * 8];
      const [x, y] = narrow ? [node.x + 15 + across, node.y + (node.step > 30 ? 20 : 4)] : [node.x - 13 - across, node.y - 4 + down];
      shown.push({ id: request.id, x, y, colour: "info-fill", fading: 0 });
    }
    return shown;
  }
}

// At most so many [name, each], by name; the last one is for all others.
function busiest(record, weight, most) {
  const entries = Object.entries(record);
  if (entries.length <= most) return entries;
  const weighed = entries.map((entry) => [weight(entry[1]), entry]).sort(([a], [b]) => b - a);
  const shown = weighed.slice(0, most - 1).map(([, entry]) => entry).sort(([a], [b]) => compareNames(a, b));
  return [...shown, [REST, { name: `${entries.length - shown.length} others` }]];
}
