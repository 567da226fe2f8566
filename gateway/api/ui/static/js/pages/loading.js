// Models that agents load and unload on command: what an operator has them do.

import { post, segments } from "../api.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { compareNames, count, plural, seconds } from "../format.js";
import { live } from "../live.js";
import { toast } from "../parts.js";
import { session } from "../session.js";

const OUT = new Set(["loadable", "failed"]);

// Deployments of a model, each [key, deployment], by what can be done about them: { out, loaded }.
export function managedOf(entries) {
  const managed = entries.filter(([, each]) => each.managed);
  return { out: managed.filter(([, each]) => OUT.has(each.status)), loaded: managed.filter(([, each]) => each.status === "loaded" && !each.leaving) };
}

// Buttons for the row of a model, or of its deployment at `agent`.
export function loadingActions(model, { out, loaded }, agent = null) {
  if (!session.may("operator")) return "";
  const here = (list) => list.filter(([, each]) => agent === null || each.agent === agent);
  const button = (words, doing) => h("button", { type: "button", on: { click: () => doing(model, agent) } }, words);
  return h("span", { class: "inline" }, here(out).length > 0 && button("Load…", loadModel), here(loaded).length > 0 && button("Evict…", evictModel));
}

const deploymentsOf = (model) => Object.entries(live.state.deployments).filter(([, each]) => each.model === model);
const names = (list) => [...new Set(list.map(([, each]) => each.agent))].sort(compareNames);
const choices = (agent, list, anywhere) => (agent ? [] : [{ name: "agent", label: "Where", options: [["", anywhere], ...names(list).map((name) => [name, name])] }]);

export async function loadModel(model, agent) {
  const { out } = managedOf(deploymentsOf(model));
  const answer = await ask({
    title: agent ? `Load ${model} at ${agent}?` : `Load ${model}?`,
    words: "It is loaded as if requests waited for it: where memory is short, a model that is idle is unloaded for it. It is tried for five minutes.",
    fields: choices(agent, out, "where it fits best"),
    action: "Load",
    submit: ({ agent: chosen }) => post(`/admin/models/${segments(model)}/load`, { agent: agent ?? chosen ?? null }),
  });
  if (!answer) return;
  const when = answer.expected_s ? `, in about ${seconds(answer.expected_s)}` : "";
  toast(answer.begun ? `${model} is to be loaded${when}.` : `${model} is loaded, or is being loaded, at all ${count(answer.places)} places.`);
}

export async function evictModel(model, agent) {
  const { loaded } = managedOf(deploymentsOf(model));
  const running = loaded.filter(([, each]) => !agent || each.agent === agent).reduce((sum, [, each]) => sum + (each.in_flight ?? 0), 0);
  const waiting = live.state.models[model]?.waiting ?? 0;
  const answer = await ask({
    title: agent ? `Evict ${model} from ${agent}?` : `Evict ${model}?`,
    words: [
      "It gets no new requests and is unloaded when what runs is over; nothing is cut off.",
      running ? `${plural(running, "request")} run now.` : "Nothing runs now.",
      waiting ? `${plural(waiting, "request")} wait for it: it is loaded again for them.` : "A request that comes later has it loaded again.",
    ].join(" "),
    fields: choices(agent, loaded, `everywhere (${plural(names(loaded).length, "host")})`),
    action: "Evict",
    danger: true,
    submit: ({ agent: chosen }) => post(`/admin/models/${segments(model)}/evict`, { agent: agent ?? chosen ?? null }),
  });
  if (!answer) return;
  const still = answer.deployments.reduce((sum, each) => sum + each.running, 0);
  const kept = answer.kept?.length ? ` ${answer.kept.join(", ")} decides itself.` : "";
  toast(`${model} goes from ${plural(answer.deployments.length, "host")}${still ? `, when ${plural(still, "request")} are over` : ""}.${kept}`);
}
