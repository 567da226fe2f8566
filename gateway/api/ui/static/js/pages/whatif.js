// What if: the last hour's requests replayed in the simulator with another fleet or another policy. Nothing is
// changed by it.

import { fill, h } from "../dom.js";
import { count, plural } from "../format.js";
import { Page } from "../page.js";
import { empty, headed, notice, panel, select } from "../parts.js";
import { events } from "../sse.js";
import { WhatIfAnswer } from "./whatifanswer.js";

const SILENCE_MS = 120000;
const MINUTES = [["5", "5 minutes"], ["15", "15 minutes"], ["60", "hour"], ["360", "6 hours"], ["1440", "day"]];

export class WhatIfPage extends Page {
  build() {
    this.running = null;
    this.place = h("div");
    this.answer = new WhatIfAnswer(this.left.signal);
    this.answer.node.hidden = true;
    this.append(h("div", { class: "topline" }, h("h1", {}, "What if")),
      h("p", { class: "dim" }, "The requests of the last hour, replayed in the simulator with another fleet or another policy. The gateway goes on as it is."),
      this.place, this.answer.node);
    this.left.signal.addEventListener("abort", () => this.running?.abort());
    this.load();
  }

  async load() {
    fill(this.place, h("p", { class: "dim" }, "Asking what is served…"));
    try {
      this.about = await this.get("/admin/whatif");
    } catch (error) {
      if (this.left.signal.aborted) return;
      const again = h("button", { type: "button", on: { click: () => this.load() } }, "Try again");
      fill(this.place, notice(error.words ?? error.message, "bad"), again);
      return;
    }
    if (this.about.models.length) this.showForm();
    else fill(this.place, panel("", empty("No model is served now", "A what-if starts from the fleet as it is. It can be asked once a host serves a model.")));
  }

  showForm() {
    this.model = this.about.models[0].model;
    this.presets = h("div", { class: "presets" });
    this.form = h("form", { class: "whatif", on: { submit: (event) => (event.preventDefault(), this.run(this.body())) } });
    this.status = h("div", { role: "status" });
    this.showFields();
    const models = this.about.models.map(({ model }) => [model, model]);
    const choose = select("Model", models, this.model, (model) => ((this.model = model), this.showFields()));
    fill(this.place, headed("What is to be different", models.length > 1 && h("label", { class: "inline" }, "Model", choose), this.presets, this.form, this.status));
  }

  // What is asked most, with one click each.
  showPresets() {
    const { devices } = this.chosen();
    const now = Object.entries(devices).sort((a, b) => b[1] - a[1])[0][0];
    const presets = [
      [now ? `2 more ${now}` : "2 more like those", { add: "2", device: now }],
      now !== "l4" && ["2 more l4", { add: "2", device: "l4" }],
      now !== "h100" && ["1 more h100", { add: "1", device: "h100" }],
      this.chosen().deployments > 1 && ["1 fewer", { remove: "1" }],
      ["Twice the requests", { scale: "2" }],
      ["Only check the simulation", {}],
    ].filter(Boolean);
    const use = (values) => () => {
      this.showFields(values);
      this.run(this.body());
    };
    fill(this.presets, h("span", { class: "dim small" }, "At once:"), presets.map(([words, values]) => h("button", { type: "button", on: { click: use(values) } }, words)));
  }

  chosen() {
    return this.about.models.find(({ model }) => model === this.model);
  }

  showFields(values = {}) {
    const { about } = this;
    const { devices, deployments, slots } = this.chosen();
    const here = Object.keys(devices);
    const known = about.devices.map(({ device }) => device).filter((device) => !here.includes(device));
    const named = (device) => [device, device || "as those without a name"];
    const classes = [...here.map((device) => [device, `${named(device)[1]} (${devices[device]} now)`]), ...known.map(named)];
    const field = (name, label, hint, props = {}) => h("label", { class: "field" }, label,
      h("input", { name, type: "number", min: 0, step: "any", placeholder: "as now", value: values[name] ?? "", ...props }), hint && h("span", { class: "hint" }, hint));
    const list = (name, label, choices, chosen) => h("label", { class: "field" }, label,
      h("select", { name }, choices.map(([value, words]) => h("option", { value, selected: value === chosen }, words))));
    this.cancel = h("button", { type: "button", hidden: true, on: { click: () => this.running?.abort() } }, "Cancel");
    this.button = h("button", { type: "submit", class: "primary" }, "Replay");
    const policies = [["", `as now (${this.chosen().policy})`], ...about.policies.map((name) => [name, name])];
    fill(this.form,
      h("div", { class: "fields" },
        field("add", "Deployments more", `${plural(deployments, "deployment")}, ${plural(slots, "slot")} now`, { step: 1, max: about.limits.deployments, placeholder: "0" }),
        list("device", "of the class", classes, values.device ?? here[0]),
        field("remove", "Deployments fewer", "", { step: 1, max: deployments - 1, placeholder: "0" }),
        list("policy", "Policy", policies, values.policy ?? ""),
        field("scale", "Requests, times as many a second", "", { min: 0.01, max: 100, placeholder: "1" }),
        list("minutes", "Of the last", MINUTES, values.minutes ?? "60")),
      h("details", {}, h("summary", {}, "Speeds, slots, prices, limits"), h("div", { class: "fields" },
        field("slots_added", "Slots of each that is added", "", { step: 1, min: 1, max: 4096, placeholder: "by its memory" }),
        field("tokens_per_s", "Its tokens per second, alone", "What one request alone is written at.", { placeholder: "as measured, or scaled" }),
        field("prompt_tokens_per_s", "Its prompt tokens per second", "", { placeholder: "as measured, or scaled" }),
        field("price_added", "Its price per hour", "", { placeholder: "not known" }),
        field("slots", "Slots of each that is there", "", { step: 1, min: 1, max: 4096 }),
        field("gpu_hour", "Price per hour of those without one", "", { placeholder: "not known" }),
        field("max_wait_s", `A request waits, s at most (${about.queue.max_wait_s} now)`, ""),
        field("max_requests", `Requests wait, at most (${count(about.queue.max_requests)} now)`, "", { step: 1, min: 1 }),
        field("good_first_s", `Service level: first token within, s (${about.level.first_token_s})`, "", { placeholder: about.level.first_token_s }),
        field("good_each_s", `and each further one within, s (${about.level.token_s})`, "", { placeholder: about.level.token_s }))),
      h("div", { class: "inline" }, this.button, this.cancel));
    this.showPresets();
  }

  // What the gateway is asked; a field that is empty is left out.
  body() {
    const { elements } = this.form;
    const number = (name) => (elements[name].value.trim() === "" ? undefined : Number(elements[name].value));
    const [more, fewer, slots] = [number("add"), number("remove"), number("slots")];
    return {
      minutes: Number(elements.minutes.value),
      policy: elements.policy.value || undefined,
      scale: number("scale"),
      ...Object.fromEntries(["max_wait_s", "max_requests", "gpu_hour", "good_first_s", "good_each_s"].map((name) => [name, number(name)])),
      slots: slots ? { [this.model]: slots } : undefined,
      add: more ? [{ model: this.model, device: elements.device.value, count: more, slots: number("slots_added"), tokens_per_s: number("tokens_per_s"), prompt_tokens_per_s: number("prompt_tokens_per_s"), gpu_hour: number("price_added") }] : undefined,
      remove: fewer ? [{ model: this.model, count: fewer }] : undefined,
    };
  }

  async run(body) {
    this.running?.abort();
    const running = (this.running = new AbortController());
    const bar = h("progress", { max: 1, "aria-label": "Requests that were replayed" });
    const words = h("span", { class: "number small" }, "Reading what was recorded…");
    fill(this.status, h("p", { class: "inline" }, bar, words));
    this.busy(true);
    try {
      const result = await this.replay(body, running.signal, ({ done, of }) => {
        bar.value = of ? done / of : 0;
        words.textContent = `${count(done)} of ${count(of)} requests replayed`;
      });
      if (this.running !== running) return;
      fill(this.status);
      this.answer.show(result);
      this.answer.node.hidden = false;
      this.answer.node.scrollIntoView({ block: "start", behavior: "auto" });
    } catch (error) {
      if (this.running !== running || this.left.signal.aborted) return;
      this.answer.node.hidden = true;
      if (running.signal.aborted) fill(this.status, notice("Cancelled. Nothing goes on at the gateway."));
      else if (error.code === "nothing_to_replay") fill(this.status, empty("There is nothing to replay", error.message));
      else fill(this.status, notice(error.words ?? error.message, "bad"));
    }
    this.running = null;
    this.busy(false);
  }

  busy(now) {
    this.button.disabled = now;
    this.cancel.hidden = !now;
    for (const button of this.presets.querySelectorAll("button")) button.disabled = now;
  }

  async replay(body, signal, onProgress) {
    for await (const { event, data } of events("/admin/whatif", { method: "POST", body, signal, silenceMs: SILENCE_MS })) {
      const said = JSON.parse(data);
      if (event === "progress") onProgress(said);
      else if (event === "result") return said;
      else if (event === "failed") throw new Error(said.error?.message ?? "It failed.");
    }
    throw new Error("The gateway's answer broke off.");
  }
}
