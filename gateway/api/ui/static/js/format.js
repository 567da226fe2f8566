// Numbers with their units, times and shares, as texts.

const NONE = "–";
const NB = "\u00a0"; // between a number and its unit: no line ends there
const known = (value) => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  if (!known(value)) return NONE;
  if (Math.abs(value) < 10000) return String(Math.round(value));
  for (const [limit, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= limit) return `${digits(value / limit)}${NB}${unit}`;
  }
  return NONE;
}

export const digits = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : Math.abs(value) >= 10 ? value.toFixed(1) : value.toFixed(2));

export function bytes(value) {
  if (!known(value)) return NONE;
  for (const [limit, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= limit) return `${digits(value / limit)}${NB}${unit}`;
  }
  return `${Math.round(value)}${NB}B`;
}

export function seconds(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size === 0) return `0${NB}s`;
  if (size < 0.001) return `${digits(value * 1e6)}${NB}µs`;
  if (size < 1) return `${digits(value * 1e3)}${NB}ms`;
  if (size < 90) return `${digits(value)}${NB}s`;
  if (size < 5400) return `${(value / 60).toFixed(size < 600 ? 1 : 0)}${NB}min`;
  if (size < 172800) return `${(value / 3600).toFixed(1)}${NB}h`;
  return `${(value / 86400).toFixed(1)}${NB}d`;
}

export const percent = (share) => (known(share) ? `${share > 0 && share < 0.0995 ? (share * 100).toFixed(1) : Math.round(share * 100)}${NB}%` : NONE);
export const celsius = (value) => (known(value) ? `${Math.round(value)}${NB}°C` : NONE);
export const watts = (value) => (known(value) ? `${Math.round(value)}${NB}W` : NONE);
// As somebody has set it, with all its digits.
export const exact = (value) => value.toLocaleString("en", { maximumFractionDigits: 6 });
export const rate = (value, unit) => (known(value) ? `${value < 10 ? value.toFixed(1) : count(value)}${NB}${unit}` : NONE);
export const money = (value) => (known(value) ? value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: value < 1 ? 6 : 2 }) : NONE);

export function ago(unixS, nowS = Date.now() / 1000) {
  if (!known(unixS)) return "never";
  const passed = nowS - unixS;
  if (Math.abs(passed) < 90) return passed < 0 ? `in ${Math.ceil(-passed)}${NB}s` : passed < 5 ? "just now" : `${Math.round(passed)}${NB}s ago`;
  return passed < 0 ? `in ${seconds(-passed)}` : `${seconds(passed)} ago`;
}

// In the browser's own zone; of another day, with its date.
export function clock(unixS) {
  if (!known(unixS)) return NONE;
  const at = new Date(unixS * 1000);
  const date = at.toDateString() === new Date().toDateString() ? "" : `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} `;
  return date + at.toLocaleTimeString("en-GB");
}

export function day(unixS) {
  if (!known(unixS)) return NONE;
  return new Date(unixS * 1000).toISOString().slice(0, 16).replace("T", " ") + " UTC";
}

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
export const list = (values) => (values?.length ? values.join(", ") : NONE);

// For sorting: "gpu-2" before "gpu-10".
export const compareNames = new Intl.Collator("en", { numeric: true }).compare;
