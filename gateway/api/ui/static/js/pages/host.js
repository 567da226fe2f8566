// One GPU host: its GPUs, engines, deployments, tunnel and changes of state; drain and revoke.

import { get, post, remove, segment } from "../api.js";
import { Chart } from "../chart.js";
import { ask } from "../dialogs.js";
import { fill, h } from "../dom.js";
import { ago, bytes, celsius, clock, count, day, list, percent, plural, seconds, watts } from "../format.js";
import { live } from "../live.js";
import { Page } from "../page.js";
import { act, badge, empty, facts, labels, meter, panel, toneOf } from "../parts.js";
import { session } from "../session.js";
import { Table } from "../table.js";
import { stateOf } from "./fleet.js";
import { loadingActions, managedOf } from "./loading.js";

const FIGURES = [
  ["use", "Use", percent, 1],
  ["memory", "Memory used", percent, 1],
  ["temperature", "Temperature", celsius, 100],
  ["power", "Power", watts, null],
];

export class HostPage extends Page {
  build() {
    this.name = this.args[0] ?? "";
    this.state = h("span");
    this.actions = h("span", { class: "inline" });
    this.headline = h("div", { class: "topline" }, h("h1", {}, this.name), this.state, h("span", { class: "grow" }), this.actions);
    this.showActions(undefined);
    this.about = h("div");
    this.gpus = h("div");
    this.charts = new Map();
    this.engines = new Table({ columns: ENGINES, key: (row) => row.name, sort: 0, whenEmpty: ["No engine", "The agent has named none."], caption: "Engines" });
    this.deployments = new Table({ columns: [...DEPLOYMENTS, session.may("operator") && { title: "", cell: (row) => loadingActions(row.model, managedOf([[row.key, row]]), row.agent) }].filter(Boolean), key: (row) => row.key, sort: 0, whenEmpty: ["Nothing is served here", ""], caption: "Deployments" });
    this.log = h("ol", { class: "log" });
    this.append(this.headline, this.about, panel("GPUs", this.gpus), panel("Engines", this.engines.node), panel("Deployments", this.deployments.node), panel("Changes of state", this.log));
    this.refresh = this.every(10, async (signal) => {
      const found = (await get("/admin/agents", signal)).agents.find((each) => each.name === this.name);
      this.known = found ?? null;
      this.showKnown();
    });
  }

  update(state) {
    const agent = state.agents[this.name];
    fill(this.state, agent && stateOf(agent));
    if (this.drains !== agent?.draining) this.showActions(agent?.draining);
    if (live.frames > 0) this.deployments.update(Object.entries(state.deployments).filter(([, each]) => each.agent === this.name).map(([key, each]) => ({ key, ...each })));
    this.showGpus(agent);
    this.showLog();
    if (agent) this.showAbout(agent);
  }

  showActions(drains) {
    const focused = this.actions.contains(document.activeElement);
    this.drains = drains;
    const drain = h("button", { type: "button", on: { click: () => this.drain(drain, !this.drains) } }, this.drains ? "Give it work again" : "Drain");
    const revoke = h("button", { type: "button", class: "danger", on: { click: () => this.revoke() } }, "Revoke…");
    fill(this.actions, session.may("operator") && drain, session.may("admin") && revoke);
    if (focused) this.actions.querySelector("button")?.focus();
  }

  async drain(button, held) {
    const path = `/admin/agents/${segment(this.name)}/drain`;
    const words = (answer) => (held ? `${this.name} gets no new work; ${plural(answer.streams, "request")} still run there.` : `${this.name} gets work again.`);
    const answer = await act(button, () => (held ? post(path) : remove(path)), words);
    if (answer && live.state.agents[this.name]) live.state.agents[this.name].draining = held;
    this.update(live.state);
    this.refresh();
  }

  async revoke() {
    const answer = await ask({
      title: `Revoke ${this.name}?`,
      words: "Its tunnel ends at once, requests that run there go elsewhere or fail, and its key never comes back. To return, the host must join with a new token.",
      fields: [{ name: "reason", label: "Reason", hint: "The agent is told, and the list keeps it." }],
      action: "Revoke",
      danger: true,
      submit: ({ reason }) => remove(`/admin/agents/${segment(this.name)}`, { reason: reason ?? "" }),
    });
    if (answer) this.refresh();
  }

  showAbout(agent) {
    const known = this.known;
    fill(this.about, agent.reason && h("p", { class: "notice warn" }, agent.reason), panel("Tunnel", facts([
      ["Round trip", seconds(agent.rtt_s)],
      ["Requests running", count(agent.streams)],
      ["Connected", known?.connected ? `for ${seconds(known.connected_for_s)}` : known ? `last seen ${ago(known.last_seen_s)}` : "–"],
      known?.software && ["Program", known.software],
      ["Labels", labels(agent.labels)],
      known && ["May serve", list(known.may_serve ?? known.models)],
      known && ["Joined", day(known.joined_s)],
      known?.certificate_expires_s && ["Certificate ends", `${day(known.certificate_expires_s)} (${ago(known.certificate_expires_s)})`],
      known?.held_by && ["Drained by", known.held_by],
    ])));
  }

  showKnown() {
    const agent = live.state.agents[this.name];
    if (!agent) fill(this.about, this.known ? null : empty(`No host is called ${this.name}`, "It may have been renamed or revoked."));
    else this.showAbout(agent);
    this.engines.update(this.known?.engines ?? []);
  }

  showGpus(agent) {
    const gpus = Object.entries(agent?.gpus ?? {});
    const names = gpus.map(([index, gpu]) => `${index} ${gpu.name}`).join();
    if (names !== this.drawn) {
      this.drawn = names;
      this.replaced?.abort(); // or charts that are gone would be kept until the page is left
      this.replaced = new AbortController();
      this.charts.clear();
      fill(this.gpus, gpus.length === 0 && empty("No GPU is reported", "The host has none that its driver tells of."), gpus.map(([index, gpu]) => this.gpu(index, gpu)));
    }
    for (const [index] of gpus) {
      for (const [figure] of FIGURES) this.charts.get(`${figure} ${index}`)?.update(live.series.get(`${figure} ${this.name} ${index}`));
    }
  }

  gpu(index, gpu) {
    const signal = AbortSignal.any([this.left.signal, this.replaced.signal]);
    const shown = FIGURES.filter(([figure]) => figure !== "power" || gpu.power_w !== undefined);
    const charts = shown.map(([figure, title, format, most]) => {
      const chart = new Chart(title, { format, most, signal });
      this.charts.set(`${figure} ${index}`, chart);
      return chart.node;
    });
    return h("div", {}, h("h3", {}, `${index}: ${gpu.name}, ${bytes(gpu.memory_total_bytes)}`), h("div", { class: "charts" }, charts));
  }

  showLog() {
    const prefix = `${this.name}/`;
    const changes = live.changes.filter((each) => (each.of === "agent" ? each.name === this.name : String(each.name).startsWith(prefix)));
    const mark = `${changes.length} ${changes.at(-1)?.at}`;
    if (mark === this.logged) return;
    this.logged = mark;
    const lines = changes.slice(-100).reverse().map((each) =>
      h("li", {}, h("time", { title: day(each.at) }, clock(each.at)), h("span", {}, each.of === "agent" ? "host" : each.name.slice(prefix.length), ": ", each.from ? `${each.from} → ` : "", badge(each.to ?? "gone"), each.why ? ` ${each.why}` : "")));
    fill(this.log, lines.length ? lines : h("li", { class: "whole" }, h("span", { class: "dim" }, "None among the gateway's last 100, and since this page was opened.")));
  }
}

const loadWords = (row) => (row.status === "loadable" ? "not loaded" : row.status === "loading" && typeof row.load_progress === "number" ? `loading, ${percent(row.load_progress)}` : row.status);

const ENGINES = [
  { title: "Engine", value: (row) => row.name, cell: (row) => row.name },
  { title: "Kind", value: (row) => row.kind, cell: (row) => row.kind || "–" },
  { title: "State", value: (row) => row.status, cell: (row) => badge(row.status) },
  { title: "Models", value: (row) => row.models.length, cell: (row) => list(row.models) },
  { title: "Loading", cell: (row) => row.loading || (row.load_s ? `takes ${seconds(row.load_s)}` : "–") },
  { title: "Why", cell: (row) => row.reason || "–" },
];

const DEPLOYMENTS = [
  { title: "Model", value: (row) => row.model, cell: (row) => row.model },
  { title: "Version", value: (row) => row.version, cell: (row) => row.version || "–" },
  { title: "State", value: (row) => row.status, cell: (row) => (row.leaving ? badge("being unloaded", "warn") : badge(loadWords(row), toneOf(row.status))) },
  { title: "Slots used", number: true, value: (row) => row.in_flight, cell: (row) => (row.slots ? meter(row.in_flight / row.slots, `${count(row.in_flight)}/${count(row.slots)}`) : "–") },
  { title: "Waiting at the engine", number: true, value: (row) => row.waiting, cell: (row) => count(row.waiting) },
  { title: "KV cache", number: true, value: (row) => row.kv_use, cell: (row) => percent(row.kv_use ?? undefined) },
  { title: "Health", number: true, value: (row) => row.health, cell: (row) => percent(row.health) },
  { title: "Why", cell: (row) => row.reason || "–" },
];
