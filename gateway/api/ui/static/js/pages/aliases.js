// Aliases: the shares of their targets, which a slider moves, and what they were before.

import { get, post, put, remove, segments } from "../api.js";
import { ask, names, show } from "../dialogs.js";
import { h } from "../dom.js";
import { ago, day, percent } from "../format.js";
import { act, badge, toast } from "../parts.js";
import { session } from "../session.js";

const WHOLE = 100;

// As the command line and the admin API have it: what follows the first @ that is not doubled is the version.
export function targetName({ model, version }) {
  const name = model.replaceAll("@", "@@");
  return version === null || version === undefined ? name : `${name}@${version}`;
}

// The weights to send for what the sliders say, as texts that the admin API takes.
export const targetTexts = (targets, weights) => targets.map((target, index) => `${targetName(target)}=${weights[index]}`);

// One weight is set to `value`; the others share what is left as they did before.
export function moved(weights, index, value) {
  const others = weights.reduce((sum, weight, at) => (at === index ? sum : sum + weight), 0);
  const left = WHOLE - value;
  return weights.map((weight, at) => {
    if (at === index) return value;
    return round(others > 0 ? (weight / others) * left : left / (weights.length - 1));
  });
}

const round = (value) => Math.round(value * 100) / 100;

export function aliasPanel(alias, again) {
  const path = `/admin/aliases/${segments(alias.name)}`;
  const before = alias.targets.map((target) => round(target.share * WHOLE));
  let weights = [...before];
  const may = session.may("operator");
  const apply = h("button", { type: "button", class: "primary", disabled: true }, "Switch");
  const reset = h("button", { type: "button", disabled: true }, "Undo");
  const rows = alias.targets.map((target, index) => weightRow(alias, target, index));

  function weightRow(of, target, index) {
    const label = `Share of ${targetName(target)} in ${of.name}`;
    const range = h("input", { type: "range", min: 0, max: WHOLE, step: 1, "aria-label": label, disabled: !may || of.targets.length < 2 });
    const number = h("input", { type: "number", min: 0, max: WHOLE, step: "any", "aria-label": `${label}, in per cent`, disabled: !may || of.targets.length < 2 });
    const words = h("span", { class: "number small dim" });
    const change = (event) => {
      const value = Math.max(0, Math.min(WHOLE, Number(event.target.value) || 0));
      weights = of.targets.length > 1 ? moved(weights, index, value) : [value];
      showWeights(event.target);
    };
    range.addEventListener("input", change);
    number.addEventListener("change", change);
    return { range, number, words, nodes: [h("span", { class: "name" }, targetName(target)), range, number, words] };
  }

  function showWeights(moving = null) {
    const changed = weights.some((weight, index) => weight !== before[index]);
    apply.disabled = reset.disabled = !changed;
    const whole = weights.reduce((a, b) => a + b, 0);
    rows.forEach((row, index) => {
      row.range.value = weights[index];
      if (row.number !== moving) row.number.value = weights[index];
      row.words.textContent = percent(whole ? weights[index] / whole : 0);
    });
  }

  const say = (answer) => `${alias.name} stands for ${answer.targets.map((each) => `${targetName(each)} ${percent(each.share)}`).join(", ")}.${answer.unserved?.length ? ` Nobody serves ${answer.unserved.join(", ")} now.` : ""}`;
  apply.addEventListener("click", async () => {
    const answer = await act(apply, () => put(path, { targets: targetTexts(alias.targets, weights) }), say);
    if (answer) again();
    else showWeights();
  });
  reset.addEventListener("click", () => ((weights = [...before]), showWeights()));
  const back = h("button", { type: "button", on: { click: async () => (await act(back, () => post(`${path}/rollback`), say)) && again() } }, "Back to what it was");
  const history = h("button", { type: "button", on: { click: () => showHistory(alias.name, path) } }, "History");
  const gone = h("button", { type: "button", class: "danger", on: { click: () => removeAlias(alias.name, path, again) } }, "Remove…");
  showWeights();
  return h("section", { class: "alias", data: { alias: alias.name } },
    h("h3", {}, alias.name, " ", h("span", { class: "small dim" }, `changed ${ago(alias.changed_s)}`)),
    h("div", { class: "weights" }, rows.map((row) => row.nodes)),
    alias.mirror && h("p", { class: "small dim" }, `${percent(alias.mirror.share)} of its requests are also sent to ${targetText(alias.mirror.target)}, whose answers nobody gets.`),
    alias.fallback?.length > 0 && h("p", { class: "small dim" }, `For clients that allow it: ${alias.fallback.map(targetText).join(", ")}.`),
    h("p", { class: "inline" }, may && [apply, reset, back], history, may && gone));
}

const targetText = (target) => (typeof target === "string" ? target : targetName(target));

async function showHistory(name, path) {
  try {
    const { changes } = await get(path);
    const lines = [...changes].reverse().map((each) => h("tr", {},
      h("td", { class: "number" }, day(each.at_s)), h("td", {}, badge(each.what, "")),
      h("td", {}, each.alias ? each.alias.targets.map((target) => `${targetName(target)} ${percent(target.share)}`).join(", ") : "no alias")));
    show(`What ${name} stood for`, h("div", { class: "scroll" }, h("table", {}, h("tbody", {}, lines))));
  } catch (error) {
    toast(error.words ?? error.message, "bad");
  }
}

async function removeAlias(name, path, again) {
  const answer = await ask({ title: `Remove ${name}?`, words: "Requests for it are refused from then on, unless a model has the name. A rollback brings it back.", action: "Remove", danger: true, submit: () => remove(path) });
  if (answer) again();
}

export async function editNewAlias(again) {
  const answer = await ask({
    title: "New alias",
    fields: [
      { name: "name", label: "Name", required: true, hint: "What clients ask for as the model." },
      { name: "targets", label: "Stands for", required: true, placeholder: "llama@v1=95, llama@v2=5", hint: "MODEL, or MODEL@VERSION; several with weights." },
    ],
    action: "Make it",
    submit: async ({ name, targets }) => {
      const { aliases } = await get("/admin/aliases");
      if (aliases.some((alias) => alias.name === name)) throw new Error(`${name} is an alias already. It stays as it is.`);
      return put(`/admin/aliases/${segments(name)}`, { targets: names(targets) ?? [] });
    },
  });
  if (answer) again();
}

