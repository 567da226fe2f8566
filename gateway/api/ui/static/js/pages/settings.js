// The settings in force at the process that answers.

import { get } from "../api.js";
import { h } from "../dom.js";
import { Page } from "../page.js";
import { badge, facts, headed, panel, search } from "../parts.js";
import { session } from "../session.js";
import { Table } from "../table.js";

export class SettingsPage extends Page {
  build() {
    this.rows = [];
    this.filter = "";
    this.onlySet = false;
    this.table = new Table({ columns: COLUMNS, key: (row) => row.path, sort: 0, whenEmpty: ["No setting matches", ""], caption: "Settings" });
    const only = h("input", { type: "checkbox", on: { change: (event) => ((this.onlySet = event.target.checked), this.show()) } });
    const tools = h("span", { class: "inline" }, search("Setting or value", "", (text) => ((this.filter = text), this.show())), h("label", {}, only, " only those that were set"));
    const { gateway } = session.about;
    this.append(h("div", { class: "topline" }, h("h1", {}, "Settings")),
      panel("This process", facts([["Name", gateway.process], ["Host", gateway.host], ["Version", gateway.version], ["State", badge(gateway.state)]])),
      headed("In force", tools, this.table.node),
      h("p", { class: "small dim" }, "Changed in the settings file, the environment or the command line; SIGHUP has a running gateway take up those that it can. Secrets are not shown."));
    this.every(60, async (signal) => {
      this.rows = (await get("/admin/settings", signal)).settings;
      this.show();
    });
  }

  show() {
    const wanted = this.filter.trim().toLowerCase();
    this.table.update(this.rows.filter((row) => (!this.onlySet || row.set) && `${row.path} ${JSON.stringify(row.value)}`.toLowerCase().includes(wanted)));
  }
}

const COLUMNS = [
  { title: "Setting", value: (row) => row.path, cell: (row) => h("code", {}, row.path) },
  { title: "Value", value: (row) => JSON.stringify(row.value), cell: (row) => h("code", {}, JSON.stringify(row.value)) },
  { title: "From", value: (row) => Number(row.set), cell: (row) => (row.set ? badge("set", "info") : h("span", { class: "dim" }, "default")) },
  { title: "Changes", value: (row) => Number(row.changeable), cell: (row) => (row.changeable ? "with SIGHUP" : "at a restart") },
];
