// Requests: those that run, the latest, the slow and the failed; filters that are the gateway's own.

import { h, link } from "../dom.js";
import { clock, count, day, plural, seconds } from "../format.js";
import { Page } from "../page.js";
import { badge, fill, headed, notice, search, segments, select } from "../parts.js";
import { go, setQuery } from "../router.js";
import { Table } from "../table.js";

const KINDS = [["recent", "Recent"], ["slow", "Slow"], ["failed", "Failed"]];
const STATES = [["", "Any state"], ["queued", "queued"], ["running", "running"], ["answered", "answered"], ["failed", "failed"], ["cancelled", "cancelled"]];
const TEXTS = [["model", "Model or alias"], ["tenant", "Tenant"], ["key", "Key"], ["agent", "Host"]];
const LIMIT = 200;

export class RequestsPage extends Page {
  build() {
    this.kind = KINDS.some(([kind]) => kind === this.query.get("kind")) ? this.query.get("kind") : "recent";
    this.filters = Object.fromEntries(["state", "slow_than", ...TEXTS.map(([name]) => name)].map((name) => [name, this.query.get(name) ?? ""]));
    this.rows = [];
    this.table = new Table({ columns: COLUMNS, key: (row) => row.id, whenEmpty: ["No request matches", "Only those of valid keys are kept, and only while this gateway runs."], caption: "Requests" });
    this.said = h("div");
    const fields = TEXTS.map(([name, label]) => search(label, this.filters[name], (text) => this.choose({ [name]: text.trim() })));
    const id = h("input", { type: "search", class: "long", placeholder: "Request id, then Enter", "aria-label": "Open the request of this id", on: { keydown: openOn } });
    const slow = h("input", { type: "number", min: 0, step: "any", placeholder: "Longer than, s", "aria-label": "Took longer than, in seconds", value: this.filters.slow_than, on: { input: (event) => this.choose({ slow_than: event.target.value }) } });
    this.append(h("div", { class: "topline" }, h("h1", {}, "Requests")),
      headed("What is known", segments("Which", KINDS, this.kind, (kind) => ((this.kind = kind), this.choose({}))),
        h("div", { class: "filters" }, id, fields, select("State", STATES, this.filters.state, (state) => this.choose({ state })), slow),
        this.said, this.table.node));
    this.refresh = this.every(3, (signal) => this.load(signal));
  }

  choose(changed) {
    Object.assign(this.filters, changed);
    setQuery({ kind: this.kind === "recent" ? "" : this.kind, ...this.filters });
    clearTimeout(this.later);
    this.later = setTimeout(() => this.isConnected && this.refresh(), 250);
  }

  async load(signal) {
    const query = new URLSearchParams({ kind: this.kind, limit: LIMIT });
    for (const [name, value] of Object.entries(this.filters)) if (value) query.set(name, value);
    const found = await this.get(`/admin/requests?${query}`, signal);
    this.table.update(found.requests);
    const { recent, slow, failed } = found.kept ?? {};
    const missing = Object.entries(found.why_missing ?? {}).map(([name, why]) => `${name} (${why})`).join(", ") || (found.missing ?? []).join(", ");
    fill(this.said,
      missing && notice(`Those of these gateway processes are missing: ${missing}.`, "warn"),
      h("p", { class: "small dim" }, `${plural(found.requests.length, "request")} shown${found.next ? ", and there are more" : ""}. Of requests that are over, ${count(recent)} are kept, besides ${count(slow)} slow and ${count(failed)} failed ones.`));
  }
}

function openOn(event) {
  const wanted = event.target.value.trim();
  if (event.key === "Enter" && wanted) go("request", wanted);
}

export const stateBadge = (row) => badge(row.error ?? row.state, row.error ? "bad" : undefined, row.status ? `HTTP ${row.status}` : "");
const tokens = (row) => (row.tokens_in === null && row.tokens_out === null ? "–" : `${count(row.tokens_in)} → ${count(row.tokens_out)}`);

const COLUMNS = [
  { title: "Arrived", value: (row) => row.at, cell: (row) => link(["request", row.id], h("time", { title: day(row.at) }, clock(row.at))) },
  { title: "State", value: (row) => row.state, cell: (row) => h("span", { class: "badges" }, stateBadge(row), row.slow && badge("slow", "warn"), row.attempts > 1 && badge(`${row.attempts} attempts`, "warn")) },
  { title: "Model", value: (row) => row.model, cell: (row) => h("span", { class: "name" }, row.alias && row.alias !== row.model ? `${row.alias} → ${row.model}` : row.model) },
  { title: "Kind", value: (row) => row.route, cell: (row) => h("span", { class: "name" }, `${row.route}, ${row.tier}`) },
  { title: "Whose", value: (row) => row.tenant, cell: (row) => h("span", { class: "name" }, `${row.tenant} / ${row.key}`) },
  { title: "Host", value: (row) => row.agent, cell: (row) => (row.agent ? h("span", { class: "name" }, link(["host", row.agent], row.agent)) : "–") },
  { title: "Waited", number: true, value: (row) => row.queued_s, cell: (row) => seconds(row.queued_s) },
  { title: "First byte", number: true, value: (row) => row.first_byte_s, cell: (row) => seconds(row.first_byte_s) },
  { title: "Whole", number: true, value: (row) => row.total_s, cell: (row) => seconds(row.total_s) },
  { title: "Tokens", number: true, value: (row) => row.tokens_out, cell: tokens },
];

