// Parts that several pages use.

import { fill, h, setText } from "./dom.js";

const CLASSES = {
  ready: "good", loaded: "good", up: "good", live: "good", active: "good", answered: "good", completed: "good", succeeded: "good", serving: "good",
  busy: "info", running: "info", loading: "info", queued: "info", in_progress: "info", validating: "info", finalizing: "info", polling: "info", delivered: "good",
  draining: "warn", suspended: "warn", retrying: "warn", connecting: "warn", cancelling: "warn", expired: "warn", cancelled: "warn", loadable: "", rotated: "warn",
  failed: "bad", away: "bad", down: "bad", refused: "bad", revoked: "bad", broken: "bad",
};
const SHAPES = { good: "●", info: "◆", warn: "▲", bad: "■" };

export const toneOf = (state) => CLASSES[String(state)] ?? "";

// A state, told by its word, its shape and its colour.
export function badge(state, tone = toneOf(state), title = "") {
  return h("span", { class: `badge ${tone}`, title: title || null }, SHAPES[tone] && h("span", { "aria-hidden": "true" }, SHAPES[tone]), String(state));
}

export function panel(title, ...children) {
  return h("section", { class: "panel" }, title && h("div", { class: "head" }, h("h2", {}, title)), ...children);
}

export function headed(title, tools, ...children) {
  return h("section", { class: "panel" }, h("div", { class: "head" }, h("h2", {}, title), h("span", { class: "grow" }), tools), ...children);
}

export function empty(title, words) {
  return h("div", { class: "empty" }, h("strong", {}, title), words && h("p", {}, words));
}

export function notice(words, tone = "") {
  return h("p", { class: `notice ${tone}`, role: tone === "bad" ? "alert" : null }, words);
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export function labels(of) {
  const names = Object.entries(of ?? {});
  return names.length ? h("span", { class: "badges" }, names.map(([name, value]) => h("span", { class: "label" }, `${name}=${value}`))) : "–";
}

// A share as a bar; its number stands beside it.
export function meter(share, words) {
  const bar = h("i");
  bar.style.transform = `scaleX(${Math.max(0, Math.min(1, share || 0))})`;
  return h("span", { class: "inline metered" }, h("span", { class: "meter", "aria-hidden": "true" }, bar), h("span", { class: "number small" }, words));
}

// Tiles of figures, whose texts are set again without new elements.
export class Tiles {
  constructor(names) {
    this.node = h("div", { class: "tiles" });
    this.tiles = new Map();
    for (const name of names) {
      const value = h("div", { class: "value" }, "–");
      const note = h("div", { class: "note" });
      this.tiles.set(name, { value, note });
      this.node.append(h("div", { class: "tile" }, h("div", { class: "name" }, name), value, note));
    }
  }

  set(name, value, note = "") {
    const tile = this.tiles.get(name);
    setText(tile.value, value);
    setText(tile.note, note);
  }
}

// Buttons of which one is pressed; `show` of the element presses another.
export function segments(label, choices, chosen, onChoice) {
  const node = h("div", { class: "segments", role: "group", "aria-label": label });
  const show = (now) => {
    for (const button of node.children) button.setAttribute("aria-pressed", String(button.dataset.value === now));
  };
  for (const [value, words] of choices) {
    const choose = () => (show(value), onChoice(value));
    node.append(h("button", { type: "button", data: { value }, on: { click: choose } }, words));
  }
  show(chosen);
  node.show = show;
  return node;
}

export function select(label, choices, chosen, onChoice) {
  const options = choices.map(([value, words]) => h("option", { value, selected: value === chosen }, words));
  return h("select", { "aria-label": label, on: { change: (event) => onChoice(event.target.value) } }, options);
}

export function search(label, value, onInput) {
  return h("input", { type: "search", class: "filter", placeholder: label, "aria-label": label, value, on: { input: (event) => onInput(event.target.value) } });
}

const toasts = h("div", { class: "toasts", role: "status", "aria-live": "polite" });

export function toast(words, tone = "") {
  if (!toasts.isConnected) document.body.append(toasts);
  const close = () => node.remove();
  const node = h("div", { class: `toast ${tone}` }, h("span", {}, words), h("button", { class: "link", type: "button", on: { click: close }, "aria-label": "Close this message" }, "Close"));
  toasts.append(node);
  while (toasts.children.length > 5) toasts.firstChild.remove();
  setTimeout(close, tone === "bad" ? 20000 : 6000);
}

// Do something that a button asks for, once at a time; what the gateway refuses is shown in its words.
export async function act(button, doing, done) {
  if (button) button.disabled = true;
  try {
    const answer = await doing();
    if (done) toast(typeof done === "function" ? done(answer) : done);
    return answer;
  } catch (error) {
    toast(error.words ?? error.message, "bad");
    return null;
  } finally {
    if (button) button.disabled = false;
  }
}

export { fill, h };
