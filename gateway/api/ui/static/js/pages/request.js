// The decision record of one request: why it waited, why it went where it went, what really happened.

import { segment } from "../api.js";
import { h, link } from "../dom.js";
import { bytes, count, day, money, seconds } from "../format.js";
import { Page } from "../page.js";
import { badge, facts, fill, panel } from "../parts.js";
import { stateBadge } from "./requests.js";

const PARTS = [["queue", "prompts before it"], ["load", "loading"], ["transfer", "round trip"], ["prefill", "reading the prompt"], ["decode", "writing the answer"]];

export class RequestPage extends Page {
  build() {
    this.id = this.args[0] ?? "";
    this.whole = h("div");
    this.append(h("div", { class: "topline" }, h("h1", { class: "mono" }, this.id)), this.whole);
    const again = this.every(3, async (signal) => {
      const record = await this.get(`/admin/requests/${segment(this.id)}`, signal);
      this.show(record);
    });
    this.refresh = again;
  }

  show(record) {
    const mark = JSON.stringify(record);
    if (mark === this.mark) return;
    this.mark = mark;
    fill(this.whole,
      panel("In words", h("ol", { class: "steps-words" }, (record.words ?? []).map((sentence) => h("li", {}, sentence)))),
      panel("What took how long", timeline(record)),
      h("div", { class: "columns" }, panel("Request", about(record)), panel("Used", used(record))),
      (record.queue?.reasons ?? []).length > 0 && panel("Why it waited", h("ul", {}, record.queue.reasons.map((reason) => h("li", {}, reason.words)))),
      (record.decisions ?? []).map((decision, index) => panel(`Attempt ${index + 1}: ${decision.deployment ?? decision.agent ?? ""}`, attempt(decision))));
  }
}

function timeline({ queued_s: queued = 0, first_byte_s: first, total_s: total }) {
  const begun = Math.max(0, (first ?? total ?? 0) - queued);
  const rest = first === null || first === undefined ? 0 : Math.max(0, total - first);
  const parts = [["waiting for a slot", queued, 0], ["until the first byte", begun, 1], ["the rest of the answer", rest, 2]].filter(([, value]) => value > 0);
  const whole = parts.reduce((sum, [, value]) => sum + value, 0);
  const bars = parts.map(([, value, kind]) => {
    const bar = h("i", { class: `part-${kind}` });
    bar.style.flex = `${value / whole} 1 0`;
    return bar;
  });
  return h("div", {}, h("div", { class: "parts", "aria-hidden": "true" }, bars),
    h("div", { class: "legend" }, parts.map(([name, value, kind]) => h("span", { class: "scale" }, h("i", { class: `swatch part-${kind}` }), `${name}: ${seconds(value)}`)), h("span", {}, `in all: ${seconds(total)}`)));
}

function about(record) {
  return facts([
    ["State", stateBadge(record)],
    ["Arrived", day(record.at)],
    ["Model", record.alias && record.alias !== record.model ? `${record.alias} → ${record.target ?? record.model}` : record.model],
    record.version && ["Version", record.version],
    ["Kind", [record.route, record.tier, record.streaming ? "streamed" : "in one piece"].join(", ")],
    ["Tenant, key", `${record.tenant} / ${record.key}`],
    ["Gateway process", record.process],
    record.agent && ["Host", link(["host", record.agent], record.agent)],
    record.queue && ["Ahead of it when it came", count(record.queue.ahead)],
    record.preempted > 0 && ["Gave its slot back", `${count(record.preempted)} times`],
  ]);
}

function used(record) {
  const { tokens = {}, bytes: size = {} } = record;
  return facts([
    ["Tokens in", `${count(tokens.prompt)}, of them cached ${count(tokens.cached)}; expected ${count(tokens.expected_prompt)}`],
    ["Tokens out", `${count(tokens.completion)}; expected ${count(tokens.expected_completion)}`],
    ["Bytes in, out", `${bytes(size.in)}, ${bytes(size.out)}`],
    ["GPU time", seconds(record.gpu_s)],
    ["Cost", typeof record.cost === "number" ? money(record.cost) : ["queued", "running"].includes(record.state) ? "not known yet" : "its model has no price"],
  ]);
}

function attempt(decision) {
  const { actual = {}, candidates = [] } = decision;
  const chosen = candidates.find((each) => each.chosen);
  return h("div", {},
    decision.why && h("p", {}, `Why there was another attempt: ${decision.why.words}`),
    facts([
      ["Began", `${seconds(decision.after_s)} after the request came`],
      ["Chosen by", [decision.policy, decision.continuing && "going on with a begun answer", decision.hedge && "a second copy of a late request"].filter(Boolean).join("; ")],
      ["Outcome", decision.outcome && h("span", {}, badge(decision.outcome.code), " ", decision.outcome.said ?? decision.outcome.words)],
      ["First token", `${seconds(actual.first_token_s ?? undefined)}; predicted ${seconds(chosen?.predicted?.first_token)}`],
      ["Whole", `${seconds(actual.total_s ?? undefined)}; predicted ${seconds(chosen?.predicted?.total)}`],
    ]),
    candidates.length > 0 && [h("h3", {}, `Candidates (${count(decision.considered)} were considered)`), h("div", { class: "scroll" }, candidatesTable(candidates))]);
}

function candidatesTable(candidates) {
  const heads = ["Deployment", "", "Slots used", "Cached", ...PARTS.map(([, words]) => words), "First token", "Total", "Weighed"];
  const line = (each) => {
    const predicted = each.predicted ?? {};
    const verdict = each.chosen ? badge("chosen", "good") : each.excluded ? badge(each.excluded.code, "warn", each.excluded.words) : badge("possible", "");
    const numbers = [...PARTS.map(([part]) => predicted[part]), predicted.first_token, predicted.total, predicted.weighed];
    return h("tr", {}, h("td", {}, each.deployment), h("td", {}, verdict), h("td", { class: "number" }, `${count(each.in_flight)}/${count(each.slots)}`),
      h("td", { class: "number" }, count(each.cached_tokens)), numbers.map((value) => h("td", { class: "number" }, seconds(value))));
  };
  return h("table", {}, h("thead", {}, h("tr", {}, heads.map((head, index) => h("th", { scope: "col", class: index > 1 ? "number" : null }, head)))), h("tbody", {}, candidates.map(line)));
}
