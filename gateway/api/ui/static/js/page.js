// What all pages have in common: they are elements that are told when something has changed, and that let go of
// everything when they are left.

import { get } from "./api.js";
import { h } from "./dom.js";
import { live } from "./live.js";
import { notice } from "./parts.js";

export class Page extends HTMLElement {
  constructor() {
    super();
    this.args = [];
    this.query = new URLSearchParams();
  }

  connectedCallback() {
    this.left = new AbortController();
    this.problem = h("div");
    this.replaceChildren();
    this.build();
    this.prepend(this.problem);
    if (this.update) {
      live.addEventListener("change", () => this.update(live.state), { signal: this.left.signal });
      this.update(live.state);
    }
  }

  disconnectedCallback() {
    this.left.abort();
  }

  // Ask now and then again, while the page is open and can be seen. What goes wrong is shown above the page; what
  // was known stays. What is returned asks at once: what was asked before and is not answered yet is given up.
  every(seconds, asking) {
    let [timer, asked, last] = [null, false, null];
    const turn = async () => {
      clearTimeout(timer);
      last?.abort();
      last = new AbortController();
      const signal = AbortSignal.any([this.left.signal, last.signal]);
      if (!document.hidden || !asked) {
        try {
          await asking(signal);
          asked = true;
          if (!signal.aborted) this.problem.replaceChildren();
        } catch (error) {
          if (!signal.aborted) this.problem.replaceChildren(notice(error.words ?? error.message, "bad"));
        }
      }
      if (!signal.aborted) timer = setTimeout(turn, seconds * 1000);
    };
    this.left.signal.addEventListener("abort", () => clearTimeout(timer));
    turn();
    return turn;
  }

  get(path, signal = this.left.signal) {
    return get(path, signal);
  }
}
