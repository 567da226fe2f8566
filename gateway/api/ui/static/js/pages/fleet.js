// The fleet at one look: every deployment as a cell, every host as a row.

import { gatewayUrl } from "../api.js";
import { fill, h, link } from "../dom.js";
import { celsius, compareNames, count, percent, plural, rate, seconds } from "../format.js";
import { HeatMap, legend } from "../heatmap.js";
import { Chart } from "../chart.js";
import { live } from "../live.js";
import { Page } from "../page.js";
import { Tiles, badge, empty, headed, meter, panel, search, segments, toneOf } from "../parts.js";
import { go, setQuery } from "../router.js";
import { Table } from "../table.js";

// What a cell's shade may say: its share from 0 to 1, and the value in words.
export const MEASURES = {
  utilisation: { name: "GPU use", low: "0 %", high: "100 %", share: (each) => each.utilisation ?? null, words: (each) => percent(each.utilisation) },
  slots: { name: "Slots used", low: "none", high: "all", share: (each) => (each.slots ? each.in_flight / each.slots : null), words: (each) => `${count(each.in_flight)}/${count(each.slots)}` },
  queue: { name: "Queue", low: "empty", high: "as many wait as there are slots", share: (each, model) => queueShare(each, model), words: (each, model) => count(waitingAt(each, model)) },
  temperature: { name: "Temperature", low: "30 °C", high: "90 °C", share: (each) => (each.temperature_c === undefined ? null : clamp((each.temperature_c - 30) / 60)), words: (each) => celsius(each.temperature_c) },
};

const clamp = (value) => Math.max(0, Math.min(1, value));

// What waits in the gateway for the model, as far as it is this deployment's share by slots, and at its engine.
function waitingAt(each, model) {
  const part = model?.waiting && model.slots ? (model.waiting * (each.slots ?? 0)) / model.slots : 0;
  return (each.waiting ?? 0) + part;
}

function queueShare(each, model) {
  return clamp(waitingAt(each, model) / Math.max(1, each.slots ?? 1));
}

// GPU use, where any host tells of it.
function defaultMeasure(state) {
  const deployments = Object.values(state.deployments);
  return deployments.length === 0 || deployments.some((each) => each.utilisation !== undefined) ? "utilisation" : "slots";
}

export function toneOfDeployment(each, agent) {
  if (each.status === "failed" || agent?.status === "away" || agent?.status === "failed") return "bad";
  if (each.status === "loading") return "info";
  if (agent?.draining || agent?.status === "draining" || agent?.status === "suspended" || each.health === 0) return "warn";
  return "";
}

export class FleetPage extends Page {
  build() {
    const { signal } = this.left;
    this.chosen = Object.hasOwn(MEASURES, this.query.get("by")) ? this.query.get("by") : null;
    this.filter = this.query.get("q") ?? "";
    this.tiles = new Tiles(["Hosts", "GPU use", "Slots used", "Waiting", "Requests"]);
    this.map = new HeatMap({ label: "Deployments by host. Arrow keys move, Enter opens the host.", open: (cell) => go("host", cell.group), signal });
    this.legend = h("div");
    this.nothing = h("div");
    this.table = new Table({ columns: COLUMNS, key: (row) => row.name, whenEmpty: ["No host matches", ""], caption: "Hosts" });
    this.charts = {
      running: new Chart("Requests running", { format: count, signal }),
      waiting: new Chart("Requests waiting", { format: count, signal }),
      ended: new Chart("Requests ended", { format: (value) => rate(value, "/s"), signal }),
    };
    const choices = Object.entries(MEASURES).map(([value, { name }]) => [value, name]);
    const tools = h("span", { class: "inline" },
      search("Host, model or label", this.filter, (text) => this.choose({ filter: text })),
      (this.measures = segments("What the shade says", choices, this.chosen, (value) => this.choose({ chosen: value }))));
    this.whole = h("div", {},
      this.tiles.node,
      headed("Deployments", tools, this.map.node, this.legend),
      panel("Since this page was opened", h("div", { class: "charts" }, Object.values(this.charts).map((chart) => chart.node))),
      panel("Hosts", this.table.node));
    this.append(h("div", { class: "topline" }, h("h1", {}, "Fleet")), this.nothing, this.whole);
    this.choose({});
  }

  choose({ chosen = this.chosen, filter = this.filter }) {
    Object.assign(this, { chosen, filter });
    setQuery({ by: chosen ?? "", q: filter });
    if (this.isConnected) this.update(live.state);
  }

  // What the shade says: what was chosen, else what there are figures of.
  settleMeasure(state) {
    const measure = this.chosen ?? defaultMeasure(state);
    if (measure === this.measure) return;
    this.measure = measure;
    this.measures.show(measure);
    fill(this.legend, legend(MEASURES[measure].low, MEASURES[measure].high));
  }

  update(state) {
    this.settleMeasure(state);
    const agents = Object.entries(state.agents);
    const deployments = Object.entries(state.deployments);
    this.whole.hidden = agents.length === 0;
    fill(this.nothing, agents.length === 0 && this.words(state));
    this.showTiles(state, agents, deployments);
    for (const [name, chart] of Object.entries(this.charts)) chart.update(live.series.get(name));
    const matches = this.matcher();
    const byAgent = new Map(agents.map(([name]) => [name, []]));
    for (const [key, each] of deployments) byAgent.get(each.agent)?.push([key, each]);
    const rows = agents.filter(([name, agent]) => matches(name, agent, byAgent.get(name))).map(([name, agent]) => rowOf(name, agent, byAgent.get(name)));
    rows.sort((a, b) => compareNames(a.name, b.name));
    this.table.update([...rows].sort((a, b) => b.severity - a.severity)); // until a head is chosen, what is sick comes first
    this.map.update(rows.flatMap((row) => this.cells(row, state)));
  }

  words(state) {
    if (live.frames === 0) return empty("Waiting for the gateway", "The first figures come with the first event.");
    const command = `trunkline agent --gateway ${gatewayUrl} --join TOKEN`;
    return h("div", { class: "panel" }, empty("No host has joined yet", "Make a join token (trunkline token create, or the page Keys), then run on the GPU host:"), h("pre", {}, command));
  }

  matcher() {
    const wanted = this.filter.trim().toLowerCase();
    if (!wanted) return () => true;
    return (name, agent, deployments) =>
      [name, ...Object.entries(agent.labels ?? {}).map(([k, v]) => `${k}=${v}`), ...deployments.map(([, each]) => each.model)].some((text) => text.toLowerCase().includes(wanted));
  }

  cells(row, state) {
    const measure = MEASURES[this.measure];
    if (row.deployments.length === 0) {
      const tone = ["away", "failed"].includes(row.agent.status) ? "bad" : "warn";
      return [{ key: row.name, group: row.name, share: null, text: "", tone, words: `${row.name}\n${row.agent.status}${row.agent.reason ? `: ${row.agent.reason}` : ", serves nothing"}` }];
    }
    return row.deployments.map(([key, each]) => {
      const model = state.models[each.model];
      const out = each.status === "loadable";
      const value = out ? "–" : measure.words(each, model);
      const words = [row.name, each.model + (each.version ? ` @ ${each.version}` : ""), !out && `${measure.name}: ${value}`, out ? "not loaded" : each.status, each.reason].filter(Boolean).join("\n");
      return { key, group: row.name, share: out ? null : measure.share(each, model), text: value === "–" ? "" : value, tone: toneOfDeployment(each, row.agent), words };
    });
  }

  showTiles(state, agents, deployments) {
    const connected = agents.filter(([, agent]) => agent.status !== "away").length;
    const use = agents.flatMap(([, agent]) => Object.values(agent.gpus ?? {}).map((gpu) => gpu.utilisation)).filter((value) => typeof value === "number");
    const slots = deployments.reduce((sum, [, each]) => sum + (each.slots ?? 0), 0);
    const taken = deployments.reduce((sum, [, each]) => sum + (each.in_flight ?? 0), 0);
    const oldest = Math.max(0, ...Object.values(state.models).map((model) => model.oldest_s ?? 0));
    const gpus = agents.reduce((sum, [, agent]) => sum + Object.keys(agent.gpus ?? {}).length, 0);
    this.tiles.set("Hosts", `${connected}/${agents.length}`, agents.length === connected ? "all connected" : `${agents.length - connected} away`);
    this.tiles.set("GPU use", use.length ? percent(use.reduce((a, b) => a + b) / use.length) : "–", plural(gpus, "GPU"));
    this.tiles.set("Slots used", `${count(taken)}/${count(slots)}`, plural(deployments.length, "deployment"));
    this.tiles.set("Waiting", count(state.totals.waiting), oldest ? `the first for ${seconds(oldest)}` : "");
    const failed = state.totals.failed;
    this.tiles.set("Requests", rate(live.endedPerS, "/s"), failed === undefined ? "" : `${count(failed)} failed of ${count(state.totals.ended)}`);
  }
}

function rowOf(name, agent, deployments) {
  const gpus = Object.values(agent.gpus ?? {});
  const mean = (field) => {
    const known = gpus.map((gpu) => gpu[field]).filter((value) => typeof value === "number");
    return known.length ? known.reduce((a, b) => a + b) / known.length : null;
  };
  const slots = deployments.reduce((sum, [, each]) => sum + (each.slots ?? 0), 0);
  const taken = deployments.reduce((sum, [, each]) => sum + (each.in_flight ?? 0), 0);
  const hottest = gpus.map((gpu) => gpu.temperature_c).filter((value) => typeof value === "number");
  return { name, agent, deployments, gpus, slots, taken, use: mean("utilisation"), heat: hottest.length ? Math.max(...hottest) : null, severity: severity(agent, deployments) };
}

const SEVERITY = { bad: 2, warn: 1 };

function severity(agent, deployments) {
  const tones = [toneOf(agent.status), ...deployments.map(([, each]) => toneOfDeployment(each, agent))];
  return Math.max(...tones.map((tone) => SEVERITY[tone] ?? 0));
}

const COLUMNS = [
  { title: "Host", value: (row) => row.name, cell: (row) => link(["host", row.name], row.name) },
  { title: "State", value: (row) => row.agent.status, cell: (row) => stateOf(row.agent) },
  { title: "Models", value: (row) => row.deployments.length, cell: (row) => [...new Set(row.deployments.map(([, each]) => each.model))].slice(0, 4).join(", ") || "–" },
  { title: "Slots used", number: true, value: (row) => (row.slots ? row.taken / row.slots : null), cell: (row) => (row.slots ? meter(row.taken / row.slots, `${count(row.taken)}/${count(row.slots)}`) : "–") },
  { title: "GPU use", number: true, value: (row) => row.use, cell: (row) => percent(row.use) },
  { title: "Hottest", number: true, value: (row) => row.heat, cell: (row) => celsius(row.heat) },
  { title: "Round trip", number: true, value: (row) => row.agent.rtt_s, cell: (row) => seconds(row.agent.rtt_s) },
];

export function stateOf(agent) {
  const draining = agent.draining && agent.status !== "draining" && agent.status !== "away";
  return h("span", { class: "badges" }, badge(agent.status ?? "away", undefined, agent.reason ?? ""), draining && badge("draining"));
}
