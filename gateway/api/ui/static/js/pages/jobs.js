// Jobs and batches of the key's tenant: how far they are, when they will be done, another try.

import { post, segment } from "../api.js";
import { h } from "../dom.js";
import { ago, clock, count, day, money, percent, seconds } from "../format.js";
import { Page } from "../page.js";
import { act, badge, fill, headed, meter, panel, segments } from "../parts.js";
import { session } from "../session.js";
import { Table } from "../table.js";

const WHICH = [["", "All"], ["queued,running", "Open"], ["failed,expired", "Failed"], ["succeeded", "Done"]];
const BATCH_OPEN = new Set(["validating", "in_progress", "finalizing"]);

export class JobsPage extends Page {
  build() {
    this.states = "";
    this.jobs = new Table({ columns: this.jobColumns(), key: (row) => row.id, whenEmpty: ["No jobs", "Requests to /v1/jobs, or any with Prefer: respond-async, become jobs."], caption: "Jobs" });
    this.batches = new Table({ columns: this.batchColumns(), key: (row) => row.id, whenEmpty: ["No batches", "They are made at /v1/batches."], caption: "Batches" });
    this.more = h("p", { class: "small dim" });
    this.append(h("div", { class: "topline" }, h("h1", {}, "Jobs and batches"), h("span", { class: "dim" }, `of the tenant ${session.about.key.tenant}`)),
      headed("Jobs", segments("Which jobs", WHICH, "", (states) => ((this.states = states), this.refresh())), this.jobs.node, this.more),
      panel("Batches", this.batches.node));
    this.refresh = this.every(3, () => this.load());
  }

  async load() {
    const states = this.states;
    const status = states ? `&status=${states}` : "";
    const [jobs, batches] = await Promise.all([this.get(`/v1/jobs?limit=100${status}`), this.get("/v1/batches?limit=100")]);
    if (states !== this.states) return;
    this.jobs.update(jobs.data);
    this.batches.update(batches.data);
    fill(this.more, jobs.has_more && "The latest 100 are shown; there are more.");
  }

  jobColumns() {
    return [
      { title: "Job", value: (row) => row.created_at, cell: (row) => h("code", { title: row.custom_id ?? "" }, row.id) },
      { title: "State", value: (row) => row.status, cell: (row) => badge(row.cancelling ? "cancelling" : row.status, undefined, row.error?.message ?? "") },
      { title: "Model", value: (row) => row.model, cell: (row) => row.model },
      { title: "Progress", value: (row) => row.progress, cell: (row) => progressOf(row) },
      { title: "Made", value: (row) => row.created_at, cell: (row) => h("time", { title: day(row.created_at) }, ago(row.created_at)) },
      { title: "Done", value: (row) => row.finished_at ?? row.predicted_completion_at, cell: (row) => doneAt(row) },
      { title: "Cost", number: true, value: (row) => row.predicted_cost, cell: (row) => money(row.predicted_cost ?? undefined) },
      { title: "Attempts", number: true, value: (row) => row.attempts, cell: (row) => count(row.attempts) },
      { title: "", cell: (row) => this.jobActions(row) },
    ];
  }

  jobActions(row) {
    const path = `/v1/jobs/${segment(row.id)}`;
    const run = (name, words) => async (event) => (await act(event.target, () => post(`${path}/${name}`), words)) && this.refresh();
    if (["failed", "expired", "cancelled"].includes(row.status)) return h("button", { type: "button", on: { click: run("retry", `${row.id} waits again.`) } }, "Try again");
    if (["queued", "running"].includes(row.status) && !row.cancelling) return h("button", { type: "button", on: { click: run("cancel", `${row.id} is cancelled.`) } }, "Cancel");
    return "";
  }

  batchColumns() {
    const stop = (row) => async (event) => (await act(event.target, () => post(`/v1/batches/${segment(row.id)}/cancel`), `${row.id} is cancelled.`)) && this.refresh();
    const whole = ({ total, completed, failed }) => (total ? (completed + failed) / total : 0);
    return [
      { title: "Batch", value: (row) => row.created_at, cell: (row) => h("code", {}, row.id) },
      { title: "State", value: (row) => row.status, cell: (row) => badge(row.status, undefined, row.errors?.data?.[0]?.message ?? "") },
      { title: "Path", value: (row) => row.endpoint, cell: (row) => row.endpoint },
      { title: "Progress", value: (row) => whole(row.request_counts), cell: (row) => meter(whole(row.request_counts), `${count(row.request_counts.completed)} of ${count(row.request_counts.total)}`) },
      { title: "Failed", number: true, value: (row) => row.request_counts.failed, cell: (row) => count(row.request_counts.failed) },
      { title: "Made", value: (row) => row.created_at, cell: (row) => h("time", { title: day(row.created_at) }, ago(row.created_at)) },
      { title: "Done", value: (row) => row.completed_at, cell: (row) => (row.completed_at ? ago(row.completed_at) : batchEta(row)) },
      { title: "", cell: (row) => (BATCH_OPEN.has(row.status) ? h("button", { type: "button", on: { click: stop(row) } }, "Cancel") : "") },
    ];
  }
}

function progressOf(row) {
  if (row.status === "succeeded") return meter(1, "100 %");
  if (row.status === "running" && typeof row.progress === "number") return meter(row.progress, `${percent(row.progress)} ${row.progress_text ?? ""}`);
  return row.error?.message ?? "–";
}

function doneAt(row) {
  if (row.finished_at) return h("time", { title: day(row.finished_at) }, ago(row.finished_at));
  if (!row.predicted_completion_at) return "not known";
  return h("time", { title: day(row.predicted_completion_at) }, `about ${clock(row.predicted_completion_at)}`);
}

// By the pace so far.
function batchEta({ status, created_at: created, request_counts: { total, completed, failed } }) {
  const done = completed + failed;
  if (status !== "in_progress" || !done || done >= total) return "–";
  const passed = Date.now() / 1000 - created;
  return `in about ${seconds(Math.round((passed / done) * (total - done)))}`;
}
