// API keys, tenants' limits, and join tokens for hosts.

import { h } from "../dom.js";
import { ago, count, day, exact, list } from "../format.js";
import { Page } from "../page.js";
import { badge, headed, search } from "../parts.js";
import { Table } from "../table.js";
import { changeKey, changeTenant, joinToken, newKey, newTenant, removeTenant, revokeKey, revokeToken, rotateKey } from "./keyforms.js";

export class KeysPage extends Page {
  build() {
    this.filter = "";
    this.found = [];
    const again = () => this.refresh();
    const button = (words, doing, kind = "") => h("button", { type: "button", class: kind, on: { click: () => doing(again) } }, words);
    this.keys = new Table({ columns: keyColumns(again), key: (row) => row.id, sort: 0, whenEmpty: ["No key matches", ""], caption: "Keys" });
    this.tenants = new Table({ columns: tenantColumns(again), key: (row) => row.name, sort: 0, whenEmpty: ["No tenant has limits", "A tenant is made by its first key, and may have what its keys may."], caption: "Tenants" });
    this.tokens = new Table({ columns: tokenColumns(again), key: (row) => row.id, sort: 3, descending: true, whenEmpty: ["No join tokens", "A token lets a GPU host become an agent."], caption: "Join tokens" });
    const tools = h("span", { class: "inline" }, search("Key or tenant", "", (text) => ((this.filter = text), this.show())), button("New key…", newKey, "primary"));
    this.append(h("div", { class: "topline" }, h("h1", {}, "Keys and tenants")),
      headed("API keys", tools, this.keys.node),
      headed("Tenants with limits", button("Limit a tenant…", newTenant), this.tenants.node),
      headed("Join tokens", button("New token…", joinToken), this.tokens.node));
    this.refresh = this.every(15, (signal) => this.load(signal));
  }

  async load(signal) {
    const [keys, tenants, tokens] = await Promise.all(["keys", "tenants", "tokens"].map((name) => this.get(`/admin/${name}`, signal)));
    this.found = keys.keys;
    this.show();
    this.tenants.update(tenants.tenants);
    this.tokens.update(tokens.tokens);
  }

  show() {
    const wanted = this.filter.trim().toLowerCase();
    this.keys.update(this.found.filter((row) => `${row.name} ${row.tenant}`.toLowerCase().includes(wanted)));
  }
}

const limit = (name, words) => (row) => (row[name] === null || row[name] === undefined ? null : `${exact(row[name])} ${words}`);
const spend = (name, words) => (row) => (row[name] === null || row[name] === undefined ? null : `costs of ${exact(row[name])} ${words}`);
const RATES = [limit("rpm", "requests/min"), limit("tpm", "tokens/min"), limit("concurrency", "at once")];
const BUDGETS = [
  limit("tokens_per_day", "tokens/day"), limit("tokens_per_month", "tokens/month"), limit("gpu_seconds_per_day", "GPU s/day"), limit("gpu_seconds_per_month", "GPU s/month"),
  spend("money_per_day", "a day"), spend("money_per_month", "a month"), (row) => (row.queue_share ? `${exact(row.queue_share * 100)} % of the queue` : null), (row) => (row.weight ? `weight ${exact(row.weight)}` : null),
];
const limits = (row, of) => of.map((one) => one(row)).filter(Boolean).join(", ") || "none";

function scopes(row) {
  const parts = ["models", "routes", "tiers"].filter((name) => row[name]).map((name) => `${name}: ${list(row[name])}`);
  if (row.where) parts.push(`where: ${Object.entries(row.where).map(([name, values]) => `${name}=${list(values)}`).join("; ")}`);
  return parts.join("; ") || "everything";
}

function keyColumns(again) {
  const act = (words, doing, row, kind = "") => h("button", { type: "button", class: kind, on: { click: () => doing(row, again) } }, words);
  return [
    { title: "Name", value: (row) => row.name, cell: (row) => row.name },
    { title: "Tenant", value: (row) => row.tenant, cell: (row) => row.tenant },
    { title: "State", value: (row) => row.state, cell: (row) => badge(row.state) },
    { title: "Role", value: (row) => row.role, cell: (row) => row.role ?? "–" },
    { title: "May ask for", cell: scopes },
    { title: "Limits", cell: (row) => limits(row, RATES) },
    { title: "Last used", value: (row) => row.last_used_s ?? 0, cell: (row) => ago(row.last_used_s ?? undefined) },
    { title: "Ends", value: (row) => row.expires_s ?? Infinity, cell: (row) => (row.expires_s ? day(row.expires_s) : "–") },
    { title: "", cell: (row) => (row.state === "active" ? h("span", { class: "inline" }, act("Change…", changeKey, row), act("New secret…", rotateKey, row), act("Revoke…", revokeKey, row, "danger")) : "") },
  ];
}

function tenantColumns(again) {
  return [
    { title: "Tenant", value: (row) => row.name, cell: (row) => row.name },
    { title: "Limits", cell: (row) => limits(row, [...RATES, ...BUDGETS]) },
    { title: "Changed", value: (row) => row.changed_s, cell: (row) => ago(row.changed_s) },
    { title: "", cell: (row) => h("span", { class: "inline" }, h("button", { type: "button", on: { click: () => changeTenant(row, again) } }, "Change…"), h("button", { type: "button", class: "danger", on: { click: () => removeTenant(row, again) } }, "Remove…")) },
  ];
}

function tokenColumns(again) {
  return [
    { title: "Id", value: (row) => row.id, cell: (row) => h("code", {}, row.id.slice(0, 12)) },
    { title: "State", value: (row) => row.state, cell: (row) => badge(row.state) },
    { title: "Used", number: true, value: (row) => row.uses, cell: (row) => `${count(row.uses)}/${count(row.uses_allowed)}` },
    { title: "Made", value: (row) => row.created_s, cell: (row) => ago(row.created_s) },
    { title: "Ends", value: (row) => row.expires_s, cell: (row) => day(row.expires_s) },
    { title: "Models", cell: (row) => list(row.models) },
    { title: "", cell: (row) => (row.state === "active" ? h("button", { type: "button", class: "danger", on: { click: () => revokeToken(row, again) } }, "Revoke…") : "") },
  ];
}
