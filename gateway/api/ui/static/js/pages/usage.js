// What was used and what it cost, by key, tenant, model, deployment or day.

import { h } from "../dom.js";
import { count, money, plural, seconds } from "../format.js";
import { Page } from "../page.js";
import { Tiles, fill, headed, meter, notice, segments } from "../parts.js";
import { setQuery } from "../router.js";
import { save } from "../csv.js";
import { Table } from "../table.js";

const BY = [["tenant", "Tenant"], ["key", "Key"], ["model", "Model"], ["deployment", "Deployment"], ["day", "Day"]];
const FIGURES = ["requests", "prompt_tokens", "cached_tokens", "completion_tokens", "gpu_s", "cost"];
const PAGES = 20; // of 1,000 rows

export class UsagePage extends Page {
  build() {
    this.by = BY.some(([by]) => by === this.query.get("by")) ? this.query.get("by") : "tenant";
    this.since = this.query.get("since") ?? "";
    this.tiles = new Tiles(["Requests", "Tokens in", "Tokens out", "GPU time", "Cost"]);
    this.said = h("div");
    this.place = h("div");
    const since = h("input", { type: "date", value: this.since, "aria-label": "Since this day, UTC", on: { change: (event) => ((this.since = event.target.value), this.again()) } });
    this.csv = h("button", { type: "button", on: { click: () => this.download() } }, "CSV");
    const tools = h("span", { class: "inline" }, h("label", { class: "small" }, "Since ", since), segments("Sums by", BY, this.by, (by) => ((this.by = by), this.again())), this.csv);
    this.append(h("div", { class: "topline" }, h("h1", {}, "Usage and cost")), this.tiles.node, headed("Used", tools, this.said, this.place));
    this.makeTable();
    this.refresh = this.every(30, (signal) => this.load(signal));
  }

  again() {
    setQuery({ by: this.by === "tenant" ? "" : this.by, since: this.since });
    this.makeTable();
    this.refresh();
  }

  // A table without rows until they have come; what was known is of another choice.
  makeTable() {
    this.rows = [];
    this.csv.disabled = true;
    const most = (name) => Math.max(1e-12, ...this.rows.map((row) => row[name]));
    const number = (title, name, format) => ({ title, number: true, value: (row) => row[name], cell: (row) => format(row[name]) });
    const title = BY.find(([by]) => by === this.by)[1];
    const columns = [
      { title, value: (row) => row[this.by], cell: (row) => row[this.by] },
      this.by === "key" && { title: "Tenant", value: (row) => row.tenant, cell: (row) => row.tenant },
      { title: "Requests", number: true, value: (row) => row.requests, cell: (row) => meter(row.requests / most("requests"), count(row.requests)) },
      number("Tokens in", "prompt_tokens", count), number("of them cached", "cached_tokens", count), number("Tokens out", "completion_tokens", count),
      number("GPU time", "gpu_s", seconds), number("Cost", "cost", money),
    ].filter(Boolean);
    this.table = new Table({ columns, key: (row) => `${row.tenant ?? ""} ${row.key_id ?? ""} ${row[this.by]}`, sort: columns.length - 1, descending: true, whenEmpty: ["Nothing was used", "Usage is counted when an engine begins to answer."], caption: "Usage" });
    fill(this.place, this.table.node);
  }

  async load(signal) {
    const { by, since } = this;
    let [rows, after] = [[], null];
    for (let page = 0; page < PAGES && (page === 0 || after !== null); page++) {
      const query = new URLSearchParams({ by, since, ...(after === null ? {} : { after }) });
      const found = await this.get(`/admin/usage?${query}`, signal);
      rows = rows.concat(found.usage);
      after = found.next;
    }
    this.rows = rows;
    this.csv.disabled = false;
    if (this.table.untouched && !rows.some((row) => row.cost > 0)) this.table.sort = this.table.columns.length - 2; // without prices, by GPU time
    this.table.update(rows);
    const sum = (name) => rows.reduce((total, row) => total + row[name], 0);
    this.tiles.set("Requests", count(sum("requests")), since ? `since ${since}` : "in all time");
    this.tiles.set("Tokens in", count(sum("prompt_tokens")), `${count(sum("cached_tokens"))} cached`);
    this.tiles.set("Tokens out", count(sum("completion_tokens")));
    this.tiles.set("GPU time", seconds(sum("gpu_s")));
    this.tiles.set("Cost", money(sum("cost")), "as prices have it");
    fill(this.said, after !== null && notice(`The first ${plural(rows.length, "row")} are shown and summed; there are more. trunkline usage --by ${by} has all.`, "warn"));
  }

  download() {
    const heads = this.by === "key" ? ["key", "key_id", "tenant"] : [this.by];
    const rows = this.rows.map((row) => [...heads, ...FIGURES].map((name) => row[name]));
    save(`usage-by-${this.by}${this.since ? `-since-${this.since}` : ""}.csv`, [[...heads, ...FIGURES], ...rows]);
  }
}
