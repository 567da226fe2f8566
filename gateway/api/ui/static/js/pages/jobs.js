// Jobs and batches of all tenants: how far they are, when they will be done, another try.

import { post, segment } from "../api.js";
import { h } from "../dom.js";
import { ago, clock, count, day, money, percent, plural, seconds } from "../format.js";
import { Page } from "../page.js";
import { act, badge, fill, headed, meter, search, segments } from "../parts.js";
import { setQuery } from "../router.js";
import { session } from "../session.js";
import { Table } from "../table.js";

const WHICH = [["", "All"], ["queued,running", "Open"], ["failed,expired", "Failed"], ["succeeded", "Done"], ["cancelled", "Cancelled"]];
const TEXTS = [["tenant", "Tenant"], ["key", "Key"], ["model", "Model"], ["group", "Batch"]];
const OF_BATCHES = { "queued,running": "validating,in_progress,finalizing,cancelling", "failed,expired": "failed,expired", succeeded: "completed", cancelled: "cancelled" };
const BATCH_OPEN = new Set(["validating", "in_progress", "finalizing"]);
const LIMIT = 100;

export class JobsPage extends Page {
  build() {
    this.filters = Object.fromEntries(["status", ...TEXTS.map(([name]) => name)].map((name) => [name, this.query.get(name) ?? ""]));
    if (!WHICH.some(([states]) => states === this.filters.status)) this.filters.status = "";
    this.jobs = new Table({ columns: this.jobColumns(), key: (row) => row.id, whenEmpty: ["No job matches", "Requests to /v1/jobs, or any with Prefer: respond-async, become jobs."], caption: "Jobs" });
    this.batches = new Table({ columns: this.batchColumns(), key: (row) => row.id, whenEmpty: ["No batch matches", "They are made at /v1/batches, or with trunkline batch."], caption: "Batches" });
    this.pages = { jobs: new Pager("job", () => this.refresh()), batches: new Pager("batch", () => this.refresh()) };
    this.lines = h("input", { type: "checkbox", checked: this.query.get("lines") === "yes", on: { change: () => this.choose({}) } });
    this.fields = Object.fromEntries(TEXTS.map(([name, label]) => [name, search(label, this.filters[name], (text) => this.choose({ [name]: text.trim() }))]));
    this.onlyTenant = h("p", { class: "small dim" });
    this.append(h("div", { class: "topline" }, h("h1", {}, "Jobs and batches")),
      headed("Jobs", segments("Which jobs and batches", WHICH, this.filters.status, (status) => this.choose({ status })),
        h("div", { class: "filters" }, Object.values(this.fields), h("label", { class: "inline small" }, this.lines, "also lines of batches")), this.jobs.node, this.pages.jobs.node),
      headed("Batches", null, this.onlyTenant, this.batches.node, this.pages.batches.node));
    this.refresh = this.every(3, (signal) => this.load(signal));
  }

  choose(changed) {
    Object.assign(this.filters, changed);
    setQuery({ ...this.filters, lines: this.lines.checked ? "yes" : "" });
    for (const pager of Object.values(this.pages)) pager.first();
    clearTimeout(this.later);
    this.later = setTimeout(() => this.isConnected && this.refresh(), 250);
  }

  async load(signal) {
    const { status, tenant } = this.filters;
    const group = this.filters.group || (this.lines.checked ? "" : "none");
    const ofBatches = { status: OF_BATCHES[status] ?? "", tenant };
    const [jobs, batches] = await Promise.all([
      this.get(`/admin/jobs?${this.asked({ ...this.filters, group }, this.pages.jobs)}`, signal),
      this.get(`/admin/batches?${this.asked(ofBatches, this.pages.batches)}`, signal),
    ]);
    this.jobs.update(jobs.jobs);
    this.batches.update(batches.batches);
    this.pages.jobs.show(jobs.jobs.length, jobs.next);
    this.pages.batches.show(batches.batches.length, batches.next);
    const others = TEXTS.filter(([name]) => name !== "tenant" && this.filters[name]).map(([, label]) => label.toLowerCase());
    fill(this.onlyTenant, others.length > 0 && `By state and tenant only: the filters ${others.join(", ")} are for jobs.`);
  }

  asked(filters, pager) {
    const given = Object.entries(filters).filter(([, value]) => value);
    return new URLSearchParams([...given, ["limit", LIMIT], ...(pager.after ? [["after", pager.after]] : [])]);
  }

  // Operators act on everything; others on what is their tenant's, as every key may.
  path(row, kind) {
    if (session.may("operator")) return `/admin/${kind}/${segment(row.id)}`;
    return row.tenant === session.about.key.tenant ? `/v1/${kind}/${segment(row.id)}` : null;
  }

  button(row, kind, name, words, done) {
    const path = this.path(row, kind);
    const run = async (event) => (await act(event.target, () => post(`${path}/${name}`), done)) && this.refresh();
    return path ? h("button", { type: "button", on: { click: run } }, words) : "";
  }

  jobColumns() {
    return [
      { title: "Job", value: (row) => row.created_at, cell: (row) => h("code", { class: "id", title: [row.id, row.custom_id].filter(Boolean).join(", ") }, row.id) },
      { title: "State", value: (row) => row.status, cell: (row) => h("span", { class: "badges" }, badge(row.cancelling ? "cancelling" : row.status, undefined, row.error ?? ""), row.attempts > 1 && badge(`${row.attempts} attempts`, "warn")) },
      { title: "Model", value: (row) => row.model, cell: (row) => h("span", { class: "name" }, row.model) },
      { title: "Whose", value: (row) => row.tenant, cell: (row) => h("span", { class: "name" }, `${row.tenant} / ${row.key ?? row.key_id}`) },
      { title: "Progress", value: (row) => row.progress, cell: (row) => progressOf(row) },
      { title: "Made", value: (row) => row.created_at, cell: (row) => h("time", { title: day(row.created_at) }, ago(row.created_at)) },
      { title: "Done", value: (row) => row.finished_at ?? row.predicted_completion_at, cell: (row) => doneAt(row) },
      { title: "Cost", number: true, value: (row) => row.predicted_cost, cell: (row) => money(row.predicted_cost ?? undefined) },
      { title: "", cell: (row) => this.jobActions(row) },
    ];
  }

  jobActions(row) {
    if (row.status === "failed") return this.button(row, "jobs", "retry", "Try again", `${row.id} waits again.`);
    if (["queued", "running"].includes(row.status) && !row.cancelling) return this.button(row, "jobs", "cancel", "Cancel", `${row.id} is cancelled.`);
    return "";
  }

  linesOf(row) {
    const show = () => {
      this.fields.group.value = row.id;
      this.choose({ group: row.id });
    };
    return h("button", { type: "button", on: { click: show } }, "Lines");
  }

  batchColumns() {
    const whole = ({ total, completed, failed }) => (total ? (completed + failed) / total : 0);
    return [
      { title: "Batch", value: (row) => row.created_at, cell: (row) => h("code", { class: "id", title: row.id }, row.id) },
      { title: "State", value: (row) => row.status, cell: (row) => badge(row.status, undefined, (row.errors ?? []).join(", ")) },
      { title: "Path", value: (row) => row.endpoint, cell: (row) => row.endpoint },
      { title: "Whose", value: (row) => row.tenant, cell: (row) => h("span", { class: "name" }, `${row.tenant} / ${row.key ?? row.key_id}`) },
      { title: "Progress", value: (row) => whole(row.request_counts), cell: (row) => batchProgress(row, whole(row.request_counts)) },
      { title: "Failed", number: true, value: (row) => row.request_counts.failed, cell: (row) => count(row.request_counts.failed) },
      { title: "Made", value: (row) => row.created_at, cell: (row) => h("time", { title: day(row.created_at) }, ago(row.created_at)) },
      { title: "Done", value: (row) => batchEnd(row), cell: (row) => batchDone(row) },
      { title: "", cell: (row) => h("span", { class: "inline" }, this.linesOf(row), BATCH_OPEN.has(row.status) && this.button(row, "batches", "cancel", "Cancel", `${row.id} is cancelled.`)) },
    ];
  }
}

// One page of a list after another, and back.
class Pager {
  constructor(what, again) {
    Object.assign(this, { what, before: [], next: null });
    const turn = (go) => {
      if (this.turning) return;
      this.turning = true; // until the page that was asked for has come
      go();
      again();
    };
    const button = (words, go) => h("button", { type: "button", on: { click: () => turn(go) } }, words);
    this.newer = button("Newer", () => this.before.pop());
    this.older = button("Older", () => this.before.push(this.next));
    this.said = h("span");
    this.node = h("p", { class: "inline small dim" }, this.said, this.newer, this.older);
    this.show(0, null);
  }

  get after() {
    return this.before.at(-1) ?? null;
  }

  first() {
    this.before = [];
  }

  show(number, next) {
    this.next = next;
    this.turning = false;
    this.newer.hidden = this.before.length === 0;
    this.older.hidden = !next;
    this.node.hidden = number === 0 && this.before.length === 0;
    const many = this.what === "batch" ? "batches" : "jobs";
    fill(this.said, `${plural(number, this.what, many)} shown, the newest first${next ? "; there are older ones" : ""}.`);
  }
}

function progressOf(row) {
  if (row.status === "succeeded") return meter(1, "100 %");
  if (row.status === "running" && typeof row.progress === "number") return meter(row.progress, `${percent(row.progress)} ${row.progress_text ?? ""}`);
  if (row.error) return row.error_status ? `${row.error} (HTTP ${row.error_status})` : row.error;
  return "–";
}

function doneAt(row) {
  if (row.finished_at) return h("time", { title: day(row.finished_at) }, ago(row.finished_at));
  if (!["queued", "running"].includes(row.status)) return "–";
  if (!row.predicted_completion_at) return "not known";
  return h("time", { title: day(row.predicted_completion_at) }, `about ${clock(row.predicted_completion_at)}`);
}

const batchEnd = (row) => row.completed_at ?? row.failed_at ?? row.cancelled_at ?? row.expired_at;

function batchProgress(row, share) {
  const { total, completed } = row.request_counts;
  if (!total) return (row.errors ?? []).join(", ") || "–";
  return meter(share, `${count(completed)} of ${count(total)}`);
}

function batchDone(row) {
  const end = batchEnd(row);
  return end ? h("time", { title: day(end) }, ago(end)) : batchEta(row);
}

// By the pace so far.
function batchEta({ status, in_progress_at: begun, created_at: created, request_counts: { total, completed, failed } }) {
  const done = completed + failed;
  if (status !== "in_progress" || !done || done >= total) return BATCH_OPEN.has(status) ? "not known" : "–";
  const passed = Date.now() / 1000 - (begun ?? created);
  return `in about ${seconds(Math.round((passed / done) * (total - done)))}`;
}
