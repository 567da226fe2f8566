// A snapshot in the form of /admin/events, made of the lists of the admin API.

import { get } from "./api.js";
import { bare } from "./merge.js";

export async function asked(signal) {
  const [agents, models, processes] = await Promise.all(["agents", "models", "processes"].map((list) => get(`/admin/${list}`, signal)));
  const snapshot = bare({ at: Date.now() / 1000, agents: {}, deployments: {}, models: {}, processes: {}, totals: {}, troubles: {} });
  for (const agent of agents.agents) {
    snapshot.agents[agent.name] = agentOf(agent);
    for (const each of agent.deployments ?? []) {
      snapshot.deployments[`${agent.name}/${each.id}`] = { ...each, agent: agent.name, in_flight: each.running, ...heatOf(agent), usable: each.status === "loaded" };
    }
  }
  for (const model of models.models) {
    const { id, waiting, slots, in_flight, deployments } = model;
    snapshot.models[id] = { waiting, slots, in_flight, deployments: deployments.length, tiers: {} };
    for (const each of deployments) {
      const found = snapshot.deployments[each.deployment];
      if (found) Object.assign(found, { in_flight: each.in_flight, slots: each.slots, health: each.healthy ? 1 : 0 });
    }
  }
  for (const each of processes.processes) snapshot.processes[each.process] = each;
  snapshot.totals = {
    running: models.models.reduce((sum, model) => sum + model.in_flight, 0),
    waiting: models.models.reduce((sum, model) => sum + model.waiting, 0),
  };
  snapshot.process = processes.processes[0]?.process;
  return snapshot;
}

function agentOf(agent) {
  const { status, draining, rtt_s, streams, reason, labels } = agent;
  const gpus = Object.fromEntries((agent.gpus ?? []).map((gpu) => [gpu.index, gpu]));
  return { status: agent.connected ? String(status).toLowerCase() : "away", draining, rtt_s, streams, reason, labels, gpus };
}

function heatOf(agent) {
  const gpus = agent.gpus ?? [];
  const known = (name) => gpus.map((gpu) => gpu[name]).filter((value) => typeof value === "number");
  const use = known("utilisation");
  const heat = known("temperature_c");
  return {
    utilisation: use.length ? use.reduce((a, b) => a + b) / use.length : undefined,
    temperature_c: heat.length ? Math.max(...heat) : undefined,
  };
}
