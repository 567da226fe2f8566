// Models: who serves them, what waits, how quick they answer; and the aliases that lead to them.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { count, percent, plural, rate, seconds } from "../format.js";
import { live } from "../live.js";
import { MetricsWindow, READ_S } from "../metrics.js";
import { Page } from "../page.js";
import { badge, empty, headed, meter, search } from "../parts.js";
import { session } from "../session.js";
import { Table } from "../table.js";
import { aliasPanel, editNewAlias } from "./aliases.js";

export class ModelsPage extends Page {
  build() {
    this.filter = "";
    this.metrics = new MetricsWindow();
    this.window = h("span", { class: "small dim" });
    this.table = new Table({ columns: this.columns(), key: (row) => row.name, sort: 0, whenEmpty: ["No model is served yet", "Models come with the hosts that serve them."], caption: "Models" });
    this.aliases = h("div");
    const add = h("button", { type: "button", on: { click: () => editNewAlias(() => this.refresh()) } }, "New alias…");
    this.append(h("div", { class: "topline" }, h("h1", {}, "Models")),
      headed("Served", search("Model", "", (text) => ((this.filter = text), this.update(live.state))), this.table.node, this.window),
      headed("Aliases", session.may("operator") && add, this.aliases));
    this.every(READ_S, async (signal) => {
      await this.metrics.read(signal);
      this.update(live.state);
    });
    this.refresh = this.every(15, async (signal) => this.showAliases((await get("/admin/aliases", signal)).aliases));
  }

  columns() {
    const p = (figure, share) => ({ number: true, value: (row) => this.metrics.percentile(figure, row.name, share), cell: (row) => seconds(this.metrics.percentile(figure, row.name, share)) });
    return [
      { title: "Model", value: (row) => row.name, cell: (row) => row.name },
      { title: "State", value: (row) => stateOf(row)[0], cell: (row) => badge(...stateOf(row)) },
      { title: "Deployments", number: true, value: (row) => row.deployments, cell: (row) => count(row.deployments) },
      { title: "Slots used", number: true, value: (row) => row.in_flight / row.slots, cell: (row) => meter(row.slots ? row.in_flight / row.slots : 0, `${count(row.in_flight)}/${count(row.slots)}`) },
      { title: "Waiting", number: true, value: (row) => row.waiting, cell: (row) => (row.waiting && row.oldest_s ? `${count(row.waiting)}, ${seconds(row.oldest_s)}` : count(row.waiting)) },
      { title: "First token p50", ...p("first_token", 0.5) },
      { title: "p95", ...p("first_token", 0.95) },
      { title: "Whole p50", ...p("whole", 0.5) },
      { title: "p95", ...p("whole", 0.95) },
      { title: "Requests", number: true, value: (row) => this.metrics.count("whole", row.name), cell: (row) => count(this.metrics.count("whole", row.name)) },
      { title: "Tokens out", number: true, value: (row) => this.tokens(row), cell: (row) => rate(this.tokens(row), "/s") },
    ];
  }

  tokens(row) {
    return this.metrics.rate("trunkline_tokens_total", "completion", row.name);
  }

  update(state) {
    const wanted = this.filter.trim().toLowerCase();
    const rows = Object.entries(state.models).map(([name, model]) => ({ name, ...model, loading: loadingOf(name, state) }));
    this.table.update(rows.filter((row) => row.name.toLowerCase().includes(wanted)));
    const { windowS } = this.metrics;
    fill(this.window, windowS ? `Percentiles, requests and tokens of the last ${seconds(Math.round(windowS))}.` : "Percentiles and requests since the gateway began.");
  }

  showAliases(aliases) {
    const mark = JSON.stringify(aliases);
    if (mark === this.mark || this.aliases.contains(document.activeElement)) return;
    this.mark = mark;
    const again = () => ((this.mark = null), this.refresh());
    fill(this.aliases, aliases.length
      ? aliases.map((alias) => aliasPanel(alias, again))
      : empty("No aliases", "An alias is a name that clients ask for and that stands for models and versions: for canaries, for switching over and back."));
  }
}

function loadingOf(name, state) {
  const loading = Object.values(state.deployments).filter((each) => each.model === name && each.status === "loading");
  const progress = loading.map((each) => each.load_progress).filter((value) => typeof value === "number");
  return { count: loading.length, progress: progress.length ? Math.max(...progress) : null };
}

function stateOf(row) {
  if (row.slots > 0) return ["ready", "good"];
  if (row.loading.count) return [row.loading.progress === null ? "loading" : `loading, ${percent(row.loading.progress)}`, "info"];
  return row.deployments ? ["no slot free for now", "warn", plural(row.deployments, "deployment")] : ["not served", "bad"];
}

