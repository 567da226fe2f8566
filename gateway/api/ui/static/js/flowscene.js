// What the page Flow draws: where tiers, models and deployments stand, and the requests on their way between them.
// Pure figures, without a canvas.

const MOST_PARTICLES = 400;
const MOST_MODELS = 12;
const MOST_DEPLOYMENTS = 24;
const LEG_MS = 700;
export const TIERS = ["realtime", "standard", "batch"];
export const REST = "\u0000rest";

export class FlowScene {
  constructor() {
    this.nodes = new Map(); // key → { x, y, column, … }
    this.particles = [];
    this.running = new Map(); // request id → { node, request }
    this.lost = 0; // requests that were not drawn, because there were too many at once
  }

  // Place everything for a canvas of this size. Busy models and deployments come first; the others are one.
  arrange(state, width, height) {
    const models = busiest(Object.entries(state.models), ([, each]) => (each.in_flight ?? 0) + 4 * (each.waiting ?? 0), MOST_MODELS);
    const deployments = busiest(Object.entries(state.deployments), ([, each]) => (each.in_flight ?? 0) + (each.usable ? 0.5 : 0), MOST_DEPLOYMENTS);
    this.nodes = new Map();
    this.column("tier", TIERS.map((tier) => [tier, {}]), width * 0.03 + 10, height);
    this.column("model", [...models.shown, ...(models.rest ? [[REST, { name: `${models.rest} others` }]] : [])], width * 0.36, height);
    this.column("deployment", [...deployments.shown, ...(deployments.rest ? [[REST, { name: `${deployments.rest} others` }]] : [])], width * 0.68, height);
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

  // Take up what happened in one delta.
  take(said, nowMs) {
    for (const request of said.requests ?? []) this.happened(request, nowMs + Math.random() * 800);
    this.lost += said.requests_left_out ?? 0;
  }

  snapshot(requests) {
    this.running.clear();
    for (const request of requests) if (request.state === "running") this.note(request);
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
    this.particles.push({ id: request.id, path, atMs, colour, ends });
  }

  // Where each particle is now, as { id, x, y, colour, fading }; those that have arrived are forgotten.
  at(nowMs) {
    const shown = [];
    this.particles = this.particles.filter((particle) => {
      const legs = particle.path.length - 1;
      const passed = (nowMs - particle.atMs) / LEG_MS;
      if (passed < 0) return true;
      if (passed >= legs + (particle.ends ? 1 : 0)) return false;
      const leg = Math.min(Math.floor(passed), Math.max(0, legs - 1));
      const from = this.nodes.get(particle.path[leg]);
      const to = this.nodes.get(particle.path[Math.min(leg + 1, legs)]);
      if (!from || !to) return false;
      const share = legs === 0 ? 1 : Math.min(1, passed - leg);
      const eased = share * share * (3 - 2 * share);
      const fading = passed > legs ? passed - legs : 0;
      shown.push({ id: particle.id, x: from.x + (to.x - from.x) * eased, y: from.y + (to.y - from.y) * eased, colour: particle.colour, fading });
      return true;
    });
    return shown;
  }

  // Requests that run, as dots beside their deployment.
  dots() {
    const counts = new Map();
    const shown = [];
    for (const request of this.running.values()) {
      const node = this.node("deployment", request.deployment);
      if (!node) continue;
      const key = `${node.kind} ${node.name}`;
      const place = counts.get(key) ?? 0;
      counts.set(key, place + 1);
      if (place < 24) shown.push({ id: request.id, x: node.x - 13 - (place % 12) * 8, y: node.y - 4 + Math.floor(place / 12) * 8, colour: "info-fill", fading: 0 });
    }
    return shown;
  }
}

function busiest(entries, weight, most) {
  if (entries.length <= most) return { shown: entries, rest: 0 };
  const sorted = [...entries].sort((a, b) => weight(b) - weight(a));
  const shown = sorted.slice(0, most - 1).sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
  return { shown, rest: entries.length - shown.length };
}
