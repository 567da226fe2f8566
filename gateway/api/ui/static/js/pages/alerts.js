// What calls for a look now, by what this page knows, with what to do about it.

import { h, link, fill, setText } from "../dom.js";
import { count, plural, seconds } from "../format.js";
import { live } from "../live.js";
import { Page } from "../page.js";
import { empty, panel } from "../parts.js";

const WAITS_S = 10;
const HOT_C = 88;

// Each { level: "bad" | "warn", title, words, section, route }, the worst first. `section` is the one of
// docs/runbook.md that says what to do.
export function alertsOf(state) {
  const found = [];
  const add = (level, title, words, section, route = null) => found.push({ level, title, words, section, route });
  for (const [name, each] of Object.entries(state.processes)) {
    if (each.up === false) add("bad", `Gateway process ${name} does not answer`, each.why || "No reason is known.", "TrunklineGatewayDown");
  }
  for (const name of Object.keys(state.troubles)) add("bad", `The gateway's machine is short of ${name}`, "What fails is named as the gateway's metrics name it.", "TrunklineMachineTrouble");
  for (const [name, agent] of Object.entries(state.agents)) agentAlerts(name, agent, add);
  for (const each of Object.values(state.deployments)) {
    if (each.status === "failed") add("bad", `${each.model} failed on ${each.agent}`, each.reason || "The engine gives no reason.", "TrunklineDeploymentsFail", ["host", each.agent]);
    else if (each.health === 0) add("warn", `${each.model} on ${each.agent} gets no requests for now`, "Requests failed there; it is tried again after a while.", "TrunklineDeploymentsFail", ["host", each.agent]);
  }
  for (const [name, model] of Object.entries(state.models)) modelAlerts(name, model, add);
  return found.sort((a, b) => Number(b.level === "bad") - Number(a.level === "bad"));
}

function agentAlerts(name, agent, add) {
  const route = ["host", name];
  if (agent.status === "away") add("bad", `${name} is away`, agent.reason || "Its tunnel is gone; nothing of it can be used.", "TrunklineAgentsGone", route);
  else if (agent.status === "failed") add("bad", `${name} serves nothing`, agent.reason || "It gives no reason.", "TrunklineDeploymentsFail", route);
  else if (agent.status === "suspended") add("warn", `${name} is silent`, "Its tunnel is gone or says nothing; its requests wait for it for some seconds.", "TrunklineAgentsGone", route);
  for (const [index, gpu] of Object.entries(agent.gpus ?? {})) {
    if (gpu.temperature_c >= HOT_C) add("warn", `GPU ${index} of ${name} is hot`, `${Math.round(gpu.temperature_c)} °C: most GPUs slow down from about ${HOT_C} °C on.`, "TrunklineGpuHot", route);
  }
}

function modelAlerts(name, model, add) {
  if (model.waiting > 0 && !model.slots) {
    add("bad", `Nobody serves ${name}`, `${plural(model.waiting, "request")} wait for it, and no deployment has a slot.`, "TrunklineNoSlotForModel", ["models"]);
  } else if (model.oldest_s >= WAITS_S) {
    add("warn", `Requests wait for ${name}`, `${count(model.waiting)} wait, the first for ${seconds(model.oldest_s)}; ${model.in_flight} of ${model.slots} slots are used.`, "TrunklineQueueGrows", ["models"]);
  }
}

export class AlertsPage extends Page {
  build() {
    this.list = h("div");
    this.append(h("div", { class: "topline" }, h("h1", {}, "Alerts")), panel(null, this.list),
      h("p", { class: "small dim" }, "What this page sees now, in the figures of the last second. It keeps no history and wakes nobody: for that, have Prometheus read /metrics."));
  }

  update(state) {
    const alerts = live.frames === 0 ? null : alertsOf(state);
    const mark = JSON.stringify(alerts, (name, value) => (name === "words" ? undefined : value));
    if (mark === this.mark) {
      alerts?.forEach(({ words }, index) => setText(this.list.children[index].querySelector(".words"), words));
      return;
    }
    this.mark = mark;
    if (alerts === null) fill(this.list, empty("Waiting for the gateway", ""));
    else if (alerts.length === 0) fill(this.list, empty("Nothing calls for a look", "All hosts are connected, every model that is asked for has slots, and nobody waits long."));
    else fill(this.list, alerts.map((alert) => alertNode(alert)));
  }
}

function alertNode({ level, title, words, section, route }) {
  return h("div", { class: "alert" }, h("span", { class: `dot ${level}`, role: "img", "aria-label": level === "bad" ? "failure" : "warning" }),
    h("div", {}, h("strong", {}, route ? link(route, title) : title), h("p", { class: "words" }, words), h("p", { class: "small dim" }, `What to do: docs/runbook.md, ${section}`)));
}
