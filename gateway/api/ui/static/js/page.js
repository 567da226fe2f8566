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
  // was known stays.
  every(seconds, asking) {
    const { signal } = this.left;
    const turn = async () => {
      if (!document.hidden || !turn.done) {
        try {
          await asking(signal);
          turn.done = true;
          this.problem.replaceChildren();
        } catch (error) {
          if (signal.aborted) return;
          this.problem.replaceChildren(notice(error.words ?? error.message, "bad"));
        }
      }
      if (!signal.aborted) turn.timer = setTimeout(turn, seconds * 1000);
    };
    signal.addEventListener("abort", () => clearTimeout(turn.timer));
    const now = () => {
      clearTimeout(turn.timer);
      return turn();
    };
    now();
    return now;
  }

  get(path) {
    return get(path, this.left.signal);
  }
}
