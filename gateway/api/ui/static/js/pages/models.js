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
import { loadingActions, managedOf } from "./loading.js";

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
    const both = (title, figure) => {
      const at = (row, share) => this.metrics.percentile(figure, row.name, share);
      return { title, number: true, value: (row) => at(row, 0.95), cell: (row) => (Number.isNaN(at(row, 0.5)) ? "–" : `${seconds(at(row, 0.5))} / ${seconds(at(row, 0.95))}`) };
    };
    return [
      { title: "Model", value: (row) => row.name, cell: (row) => h("span", { class: "name" }, row.name) },
      { title: "State", value: (row) => stateOf(row)[0], cell: (row) => badge(...stateOf(row)) },
      { title: "Slots used", number: true, value: (row) => row.in_flight / row.slots, cell: (row) => (row.slots ? meter(row.in_flight / row.slots, `${count(row.in_flight)}/${count(row.slots)}`) : "–") },
      { title: "Waiting", number: true, value: (row) => row.waiting, cell: (row) => (row.waiting && row.oldest_s ? `${count(row.waiting)}, ${seconds(row.oldest_s)}` : count(row.waiting)) },
      both("First token p50 / p95", "first_token"),
      both("Whole p50 / p95", "whole"),
      { title: "Requests", number: true, value: (row) => this.metrics.count("whole", row.name), cell: (row) => count(this.metrics.count("whole", row.name)) },
      { title: "Tokens", number: true, value: (row) => this.tokens(row), cell: (row) => rate(this.tokens(row), "/s") },
      session.may("operator") && { title: "", cell: (row) => loadingActions(row.name, row.managed) },
    ].filter(Boolean);
  }

  tokens(row) {
    return this.metrics.rate("trunkline_tokens_total", "completion", row.name);
  }

  update(state) {
    if (live.frames === 0) return;
    const wanted = this.filter.trim().toLowerCase();
    const deployments = Map.groupBy(Object.entries(state.deployments), ([, each]) => each.model);
    const rows = Object.entries(state.models).map(([name, model]) => ({ name, ...model, ...lifeOf(deployments.get(name) ?? []) }));
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

// Of its deployments: those that load, those that go, and what an operator may do about them.
function lifeOf(entries) {
  const all = entries.map(([, each]) => each);
  const loading = all.filter((each) => each.status === "loading");
  const progress = loading.map((each) => each.load_progress).filter((value) => typeof value === "number");
  return {
    loading: { count: loading.length, progress: progress.length ? Math.max(...progress) : null },
    leaving: all.filter((each) => each.leaving).length,
    failed: all.filter((each) => each.status === "failed"),
    managed: managedOf(entries),
  };
}

function stateOf(row) {
  const loading = row.loading.progress === null ? "loading" : `loading, ${percent(row.loading.progress)}`;
  const ready = row.deployments > 1 ? `ready at ${row.deployments}` : "ready";
  if (row.slots > 0) return row.loading.count ? [`${ready}, one more ${loading}`, "good"] : [ready, "good"];
  if (row.loading.count) return [loading, "info"];
  if (row.leaving) return ["being unloaded", "warn"];
  if (row.deployments) return ["no slot free for now", "warn", plural(row.deployments, "deployment")];
  if (row.failed.length) return ["failed", "bad", row.failed[0].reason ?? ""];
  return row.managed.out.length ? ["not loaded", "", "It is loaded when a request asks for it."] : ["not served", "bad"];
}
