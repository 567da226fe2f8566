// Percentiles from the gateway's histograms: of the last minutes, as differences between two readings, and of the
// whole time since the gateway began where there is only one.

import { text } from "./api.js";

const READINGS = 31;
export const READ_S = 10;

export const HISTOGRAMS = {
  first_token: "trunkline_time_to_first_token_seconds",
  first_byte: "trunkline_time_to_first_byte_seconds",
  whole: "trunkline_request_seconds",
  per_token: "trunkline_time_per_output_token_seconds",
  queue: "trunkline_queue_seconds",
};
const WANTED = new Set([...Object.values(HISTOGRAMS).map((name) => `${name}_bucket`), "trunkline_requests_total", "trunkline_tokens_total"]);

// One line of the text format: its name, labels and value; null for what is no sample.
export function readSample(line) {
  const open = line.indexOf("{");
  const name = line.slice(0, open < 0 ? line.indexOf(" ") : open);
  if (!WANTED.has(name)) return null;
  const labels = new Map();
  let at = open + 1;
  while (open >= 0 && line[at] !== "}") {
    const equals = line.indexOf('="', at);
    if (equals < 0) return null;
    const label = line.slice(at, equals);
    let value = "";
    for (at = equals + 2; at < line.length && line[at] !== '"'; at++) {
      if (line[at] === "\\") {
        at += 1;
        value += line[at] === "n" ? "\n" : line[at];
      } else value += line[at];
    }
    labels.set(label, value);
    at += line[at + 1] === "," ? 2 : 1;
  }
  return { name, labels, value: Number(line.slice(open < 0 ? name.length : at + 1).trim().split(" ")[0]) };
}

// A reading: cumulated counts by figure and model, each a Map from bucket bounds to counts.
export function readMetrics(said, atMs) {
  const reading = { atMs, buckets: new Map(), totals: new Map() };
  for (const line of said.split("\n")) {
    if (line === "" || line[0] === "#") continue;
    const sample = readSample(line);
    if (!sample) continue;
    const model = sample.labels.get("model") ?? "";
    if (sample.name.endsWith("_bucket")) {
      const key = `${sample.name.slice(0, -7)} ${model}`;
      const found = reading.buckets.get(key) ?? new Map();
      const bound = sample.labels.get("le") === "+Inf" ? Infinity : Number(sample.labels.get("le"));
      found.set(bound, (found.get(bound) ?? 0) + sample.value); // over routes and tiers
      reading.buckets.set(key, found);
    } else {
      const kind = sample.labels.get("kind") ?? sample.labels.get("status") ?? "";
      const key = `${sample.name} ${kind} ${model}`;
      reading.totals.set(key, (reading.totals.get(key) ?? 0) + sample.value);
    }
  }
  return reading;
}

// The value below which `share` of what was counted lies, read off between the bounds of its bucket.
export function quantile(buckets, share) {
  const bounds = [...buckets.entries()].sort((a, b) => a[0] - b[0]);
  const all = bounds.at(-1)?.[1] ?? 0;
  if (!(all > 0)) return NaN;
  const wanted = share * all;
  let [low, below] = [0, 0];
  for (const [bound, count] of bounds) {
    if (count >= wanted) {
      if (bound === Infinity) return low;
      return count === below ? bound : low + ((bound - low) * (wanted - below)) / (count - below);
    }
    [low, below] = [bound, count];
  }
  return low;
}

export class MetricsWindow {
  constructor() {
    this.readings = [];
  }

  async read(signal) {
    this.add(readMetrics(await text("/metrics", signal), performance.now()));
  }

  add(reading) {
    this.readings.push(reading);
    if (this.readings.length > READINGS) this.readings.shift();
  }

  // For how long the figures are, in seconds; 0: since the gateway began.
  get windowS() {
    return this.readings.length < 2 ? 0 : (this.readings.at(-1).atMs - this.readings[0].atMs) / 1000;
  }

  counted(figure, model) {
    const key = `${HISTOGRAMS[figure]} ${model}`;
    const now = this.readings.at(-1)?.buckets.get(key);
    if (!now) return new Map();
    const before = this.windowS ? this.readings[0].buckets.get(key) : null;
    const change = new Map([...now].map(([bound, count]) => [bound, count - (before?.get(bound) ?? 0)]));
    const restarted = [...change.values()].some((count) => count < 0);
    return restarted ? now : change;
  }

  percentile(figure, model, share) {
    return quantile(this.counted(figure, model), share);
  }

  count(figure, model) {
    return this.counted(figure, model).get(Infinity) ?? 0;
  }

  // A counter's growth in a second over the window.
  rate(name, kind, model) {
    if (!this.windowS) return NaN;
    const key = `${name} ${kind} ${model}`;
    const change = (this.readings.at(-1).totals.get(key) ?? 0) - (this.readings[0].totals.get(key) ?? 0);
    return change < 0 ? NaN : change / this.windowS;
  }
}
