// The answer to a what-if: what was measured, the same simulated, and the same with the changes.

import { Courses } from "../courses.js";
import { fill, h } from "../dom.js";
import { clock, count, day, money, percent, plural, rate, seconds } from "../format.js";
import { badge, headed, panel, segments } from "../parts.js";
import { Table } from "../table.js";

const LINES = [
  { name: "measured", words: "measured", colour: "dim", dash: [2, 4], width: 2 },
  { name: "before", words: "simulated as now", colour: "warn-fill", dash: [8, 4], width: 2.2 },
  { name: "after", words: "with the changes", colour: "accent", dash: [], width: 2.6 },
];
const COURSES = [
  ["first_token_p90_s", "First token p90", seconds],
  ["first_token_p50_s", "First token p50", seconds],
  ["queued_p90_s", "In the queue p90", seconds],
  ["output_tokens_per_s", "Tokens a second", (value) => rate(value, "/s")],
];
const ORIGINS = { measured: "good", few: "info", given: "info", scaled: "warn", other_models: "warn", public: "bad" };
const ORIGIN_WORDS = { measured: "measured", few: "few answers", given: "as you said", scaled: "scaled", other_models: "as other models", public: "public figures" };

const at = (name, rank) => (figures) => figures[name][rank];
const of = (name) => (figures) => figures[name];
const FIGURES = [
  ...["p50", "p90", "p99"].map((rank) => [`First token ${rank}`, at("first_token_s", rank), seconds, -1]),
  ...["p50", "p90", "p99"].map((rank) => [`In the queue ${rank}`, at("queued_s", rank), seconds, -1]),
  ["Service level kept", of("slo_kept"), percent, 1],
  ["Answered", of("answered"), count, 1],
  ["Refused", of("refused"), count, -1],
  ["Failed or cancelled", (figures) => figures.failed + figures.cancelled, count, 0],
  ["Tokens written", of("output_tokens_per_s"), (value) => rate(value, "/s"), 1],
  ["Deployments in use", of("utilisation"), percent, 0],
  ["Deployments", of("deployments"), count, 0],
  ["Slots", of("slots"), count, 0],
  ["GPU time", of("gpu_hours"), (value) => seconds(value * 3600), 0],
  ["Cost", of("cost"), money, 0],
];

export class WhatIfAnswer {
  constructor(signal) {
    this.signal = signal;
    this.node = h("div", { class: "answer" });
  }

  show(answer) {
    this.answer = answer;
    const { total, models } = answer;
    const changed = answer.changes.length > 0;
    fill(this.node,
      h("p", { class: "notice", role: "status" }, h("strong", {}, headline(answer)), h("br"), h("span", { class: "small" }, whatWasReplayed(answer))),
      panel("Before and after", figuresTable(total, "Before and after", changed)),
      this.plot(),
      models.length > 1 && panel("By model", models.map((each) => h("details", {}, h("summary", {}, `${each.model} · ${plural(each.measured.requests, "request")} · first token p90 ${change(each, at("first_token_s", "p90"), seconds)}`), figuresTable(each, each.model, changed)))),
      panel("How fast devices are taken to be", this.speeds().node),
      panel("What to keep in mind", h("ul", { class: "steps-words" }, answer.left_out.map((each) => h("li", {}, `${plural(each.requests, "request")} ${each.words}: not replayed.`)), answer.notes.map((words) => h("li", {}, words)))));
  }

  plot() {
    const courses = new Courses({ label: "Course over the time that was replayed", lines: LINES, signal: this.signal });
    const { series } = this.answer;
    const show = (name) => {
      const [, title, format] = COURSES.find(([each]) => each === name);
      const values = Object.fromEntries(LINES.map((line) => [line.name, series[line.name][name]]));
      const time = (index) => clock(series.from + index * series.step_s);
      courses.update({ title: `${title}, by when requests arrived, every ${seconds(series.step_s)}`, values, count: values.before.length, time, format });
    };
    const choose = segments("What is drawn", COURSES.map(([name, title]) => [name, title]), COURSES[0][0], show);
    show(COURSES[0][0]);
    return headed("Course", choose, courses.node);
  }

  speeds() {
    const table = new Table({
      columns: [
        { title: "Class", value: (row) => row.device, cell: (row) => row.device || "without a name" },
        { title: "Model", value: (row) => row.model, cell: (row) => row.model },
        { title: "Now", number: true, value: (row) => row.before, cell: (row) => count(row.before) },
        { title: "Then", number: true, value: (row) => row.after, cell: (row) => count(row.after) },
        { title: "Tokens, alone", number: true, value: (row) => row.tokens_per_s, cell: (row) => rate(row.tokens_per_s, "/s") },
        { title: "Prompt tokens", number: true, value: (row) => row.prompt_tokens_per_s, cell: (row) => rate(row.prompt_tokens_per_s, "/s") },
        { title: "From", value: (row) => row.origin, cell: (row) => badge(ORIGIN_WORDS[row.origin] ?? row.origin, ORIGINS[row.origin] ?? "") },
        { title: "That is", cell: (row) => h("span", { class: "small origin" }, row.words) },
      ],
      key: (row) => `${row.model} ${row.device} ${row.words}`, caption: "How fast devices are taken to be",
    });
    table.update(this.answer.speeds);
    return table;
  }
}

// Without changes the last column says how far the simulation is off, which is neither better nor worse.
function figuresTable(figures, caption, changed) {
  const rows = FIGURES.map(([title, value, format, better]) => {
    const shown = (changed ? LINES : LINES.slice(0, 2)).map(({ name }) => value(figures[name]));
    if (shown.every((each) => each === null)) return null;
    const [from, to] = shown.slice(-2);
    return h("tr", {}, h("th", { scope: "row" }, title), shown.map((each) => h("td", { class: "number" }, format(each))), h("td", { class: "number" }, difference(from, to, changed ? better : 0)));
  });
  const heads = ["", "Measured", "Simulated as now", ...(changed ? ["With the changes", "Difference"] : ["Error"])];
  return h("div", { class: "scroll" }, h("table", {}, h("caption", { class: "skip" }, caption),
    h("thead", {}, h("tr", {}, heads.map((title, index) => h("th", { scope: "col", class: index ? "number" : null }, title)))), h("tbody", {}, rows)));
}

// Better and worse are told by a sign and a word, not by a colour alone. `better` is 1 where more is better, -1 where
// less is, and 0 where it is neither.
function difference(before, after, better) {
  if (before === null || after === null) return "–";
  if (before === after) return "=";
  const share = before ? (after - before) / before : null;
  const text = share === null ? "from 0" : `${share > 0 ? "+" : "−"}${share > 9.995 ? `${(share + 1).toFixed(0)}×` : `${Math.abs(share * 100).toFixed(Math.abs(share) < 0.0995 ? 1 : 0)} %`}`;
  const gain = Math.sign(after - before) * better;
  if (!gain || (share !== null && Math.abs(share) < 0.01)) return text;
  return h("span", { class: `badge ${gain > 0 ? "good" : "bad"}` }, `${text} ${gain > 0 ? "better" : "worse"}`);
}

const change = (figures, value, format) => `${format(value(figures.before))} → ${format(value(figures.after))}`;

function headline({ changes, total }) {
  if (!changes.length) return `Nothing is different, so this shows how far the simulation is off: first token p90 ${seconds(total.measured.first_token_s.p90)} measured, ${seconds(total.before.first_token_s.p90)} simulated.`;
  const parts = [
    `first token p90 ${change(total, at("first_token_s", "p90"), seconds)}`,
    `in the queue p90 ${change(total, at("queued_s", "p90"), seconds)}`,
    `service level kept ${change(total, of("slo_kept"), percent)}`,
    (total.before.refused || total.after.refused) && `refused ${change(total, of("refused"), count)}`,
  ].filter(Boolean);
  return `With ${changes.join("; ")}: ${parts.join(", ")}.`;
}

function whatWasReplayed({ requests, from, until, source }) {
  return `${plural(requests, "request")} from ${day(from)} to ${day(until)}, from ${source}.`;
}
