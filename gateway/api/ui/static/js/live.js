// What the gateway is doing, kept up to date: a snapshot, then deltas of /admin/events. Where the stream cannot be
// had, the lists of the admin API are asked every few seconds instead. Everything kept here is bounded.

import { ApiError } from "./api.js";
import { bare, merged } from "./merge.js";
import { asked } from "./polling.js";
import { SeriesBook } from "./series.js";
import { Silence, events } from "./sse.js";

const SILENCE_MS = 15000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 30000;
const POLL_MS = 5000;
const HIDDEN_MS = 60000;
const REQUESTS = 500;
const CHANGES = 300;
const HAPPENINGS = ["requests", "requests_left_out", "flow", "tokens", "changes"];

const empty = () => bare({ at: 0, processes: {}, agents: {}, deployments: {}, models: {}, totals: {}, troubles: {} });

// Events: "change" (at most once for each frame of the screen), "frame" (each snapshot, `whole`, and each delta as it
// came), "status", "restarted".
export class Live extends EventTarget {
  constructor() {
    super();
    this.status = { kind: "connecting", words: "connecting" };
    this.forget();
    document.addEventListener("visibilitychange", () => this.onSight());
  }

  // Whoever signs in next begins with nothing.
  forget() {
    this.state = empty();
    this.requests = new Map();
    this.changes = [];
    this.series = new SeriesBook();
    this.frames = 0;
    this.endedPerS = NaN;
    this.lastId = this.epoch = "";
  }

  start() {
    this.stop();
    this.wanted = true;
    this.stopper = new AbortController();
    this.run(this.stopper.signal);
    this.onSight();
  }

  stop() {
    this.wanted = false;
    clearTimeout(this.hiding);
    this.stopper?.abort();
    this.stopper = null;
  }

  // A tab that nobody sees lets go of its stream: of all tabs together, a browser has six connections to a gateway.
  onSight() {
    clearTimeout(this.hiding);
    if (!this.wanted) return;
    if (document.hidden) this.hiding = setTimeout(() => this.pause(), HIDDEN_MS);
    else if (!this.stopper) this.start();
  }

  pause() {
    this.stopper?.abort();
    this.stopper = null;
    this.say("paused", "The page could not be seen.");
  }

  async run(signal) {
    let waitMs = FIRST_WAIT_MS;
    while (!signal.aborted) {
      const before = this.frames;
      let error = null;
      try {
        this.say("connecting", "connecting");
        await this.follow(signal);
      } catch (caught) {
        error = caught;
      }
      if (signal.aborted) return;
      if (error instanceof ApiError && [401, 403].includes(error.status)) {
        this.say("refused", error.words);
        return;
      }
      const none = error instanceof ApiError ? [404, 503].includes(error.status) : error instanceof Silence && this.frames === before;
      if (none && (await this.poll(signal, error))) continue;
      if (this.frames > before) waitMs = FIRST_WAIT_MS;
      const pauseMs = waitMs * (0.5 + Math.random() / 2); // pages that lost one gateway do not come back at once
      this.say("retrying", `${error?.message ?? "The stream ended."} Next try in ${Math.max(1, Math.round(pauseMs / 1000))} s.`);
      await pause(pauseMs, signal);
      waitMs = Math.min(waitMs * 2, LONGEST_WAIT_MS);
    }
  }

  async follow(signal) {
    for await (const { id, event, data } of events("/admin/events", { lastId: this.lastId, signal, silenceMs: SILENCE_MS })) {
      const said = JSON.parse(data);
      if (event === "snapshot") this.takeSnapshot(said, id);
      else if (event === "delta") this.takeDelta(said);
      if (id) this.lastId = id;
      this.say("live", `live, from ${this.state.process ?? "the gateway"}`);
    }
  }

  // Ask the lists instead, until they fail. Returns whether they could be had at all.
  async poll(signal, why) {
    let worked = false;
    try {
      for (let turn = 0; turn < 12 && !signal.aborted; turn++) {
        this.takeSnapshot(await asked(signal), "");
        this.lastId = ""; // no delta belongs to these
        worked = true;
        this.say("polling", `every ${POLL_MS / 1000} s: ${why.message}`);
        await pause(POLL_MS, signal);
      }
    } catch (error) {
      if (signal.aborted) return true;
      this.say("retrying", error.message);
    }
    return worked;
  }

  takeSnapshot(said, id) {
    const epoch = id.split("-")[0];
    const same = this.state.process === undefined || this.state.process === said.process;
    if (this.epoch && epoch && epoch !== this.epoch && same) this.dispatchEvent(new Event("restarted"));
    this.epoch = epoch || this.epoch;
    this.endedPerS = NaN; // there is nothing to compare with
    if (id) this.series.gap();
    this.state = merged(empty(), withoutHappenings(said));
    this.requests.clear();
    for (const request of [...(said.requests ?? [])].reverse()) this.noteRequest(request);
    if (said.changes) this.changes = said.changes.slice(-CHANGES);
    this.passed(said, true);
  }

  takeDelta(said) {
    const before = this.state;
    const [atBefore, endedBefore] = [before.at, before.totals?.ended];
    this.state = merged(before, withoutHappenings(said));
    const passedS = this.state.at - atBefore;
    const ended = this.state.totals.ended - endedBefore;
    const same = !said.processes; // what a process counted comes and goes with it
    if (passedS > 0) this.endedPerS = same && ended >= 0 ? ended / passedS : NaN;
    for (const request of said.requests ?? []) this.noteRequest(request);
    if (said.changes?.length) this.changes = [...this.changes, ...said.changes].slice(-CHANGES);
    this.passed(said, false);
  }

  noteRequest(request) {
    this.requests.delete(request.id); // it goes to the end
    this.requests.set(request.id, request);
    if (this.requests.size > REQUESTS) this.requests.delete(this.requests.keys().next().value);
  }

  // Kept for the charts of a host and of the fleet, since this page was opened.
  passed(said, whole) {
    this.frames += 1;
    const { series, state } = this;
    series.push("running", state.totals.running);
    series.push("waiting", state.totals.waiting);
    series.push("ended", this.endedPerS);
    for (const [name, agent] of Object.entries(state.agents)) {
      for (const [index, gpu] of Object.entries(agent.gpus ?? {})) {
        series.push(`use ${name} ${index}`, gpu.utilisation);
        series.push(`memory ${name} ${index}`, gpu.memory_total_bytes ? gpu.memory_used_bytes / gpu.memory_total_bytes : undefined);
        series.push(`temperature ${name} ${index}`, gpu.temperature_c);
        if (gpu.power_w !== undefined) series.push(`power ${name} ${index}`, gpu.power_w);
      }
    }
    if (this.frames % 30 === 0) series.sweep();
    this.dispatchEvent(new CustomEvent("frame", { detail: { said, whole } }));
    this.changed();
  }

  changed() {
    if (this.announcing) return;
    this.announcing = true;
    const announce = () => {
      this.announcing = false;
      this.dispatchEvent(new Event("change"));
    };
    if (document.hidden) setTimeout(announce, 1000);
    else requestAnimationFrame(announce);
  }

  say(kind, words) {
    if (this.status.kind === kind && this.status.words === words) return;
    this.status = { kind, words };
    this.dispatchEvent(new Event("status"));
  }
}

function withoutHappenings(said) {
  const rest = { ...said };
  for (const name of HAPPENINGS) delete rest[name];
  return rest;
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

export const live = new Live();
