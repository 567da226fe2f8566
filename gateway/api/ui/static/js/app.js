// The frame of the dashboard: sign-in, navigation, theme, and what the connection to the gateway is like.

import { get } from "./api.js";
import { h, fill } from "./dom.js";
import { leaveQuestions, show } from "./dialogs.js";
import { live } from "./live.js";
import { notice, toast } from "./parts.js";
import { PAGES, pageOf } from "./pages/index.js";
import { currentRoute, go } from "./router.js";
import { session } from "./session.js";
import { applyTheme, nextTheme, themeName } from "./theme.js";

export class App extends HTMLElement {
  connectedCallback() {
    applyTheme();
    document.addEventListener("tl-refused", (event) => this.signOut(event.detail.words));
    document.addEventListener("keydown", (event) => this.onKey(event));
    window.addEventListener("hashchange", () => this.showRoute());
    live.addEventListener("status", () => this.showStatus());
    live.addEventListener("change", () => this.showCounts());
    live.addEventListener("restarted", () => toast("The gateway was restarted: what it counts begins anew."));
    if (session.key) this.enter(session.key);
    else this.showSignIn();
  }

  // --- Sign-in ---

  showSignIn(problem = "") {
    this.entering = null;
    const key = h("input", { type: "password", name: "key", required: true, autocomplete: "off", spellcheck: "false", "aria-describedby": "key-hint", maxlength: 20000 });
    const said = h("p", { class: "problem", role: "alert" }, problem);
    const button = h("button", { class: "primary", type: "submit" }, "Sign in");
    const submit = async (event) => {
      event.preventDefault();
      button.disabled = true;
      said.textContent = "";
      await this.enter(key.value.trim());
      button.disabled = false;
    };
    const form = h("form", { class: "panel", on: { submit } },
      h("label", { class: "field" }, "API key or token", key,
        h("span", { class: "hint", id: "key-hint" }, "One with a role on the admin API: viewer, operator or admin. It is kept in this tab only, until you close it.")),
      said, button);
    fill(this, h("main", { class: "signin" }, brand(), h("h1", { class: "skip" }, "Sign in"), form,
      h("p", { class: "small dim" }, "To make one on the gateway's host: ", h("code", {}, "trunkline key create --name NAME --role viewer"))));
    key.focus();
  }

  // An answer that comes when somebody has signed out, or has tried again, counts no longer.
  async enter(key) {
    const entering = (this.entering = {});
    try {
      session.signIn(key, null);
      const about = await get("/admin/self");
      if (this.entering !== entering) return;
      session.about = about;
    } catch (error) {
      if (this.entering !== entering) return;
      if (error.status === 0 || error.status >= 500) {
        this.showUnreachable(key, error);
        return;
      }
      session.signOut();
      this.showSignIn(error.words ?? error.message);
      return;
    }
    this.buildShell();
    live.start();
    this.showRoute();
  }

  showUnreachable(key, error) {
    const again = () => (clearTimeout(timer), this.enter(key));
    const timer = setTimeout(again, 5000);
    const leave = () => (clearTimeout(timer), session.signOut(), this.showSignIn());
    fill(this, h("main", { class: "signin" }, brand(), notice(`${error.words} It is tried again every 5 seconds.`, "bad"),
      h("div", { class: "inline" }, h("button", { type: "button", on: { click: again } }, "Try now"), h("button", { type: "button", on: { click: leave } }, "Sign out"))));
  }

  signOut(words = "") {
    live.stop();
    session.signOut();
    this.main = null;
    this.showSignIn(words);
    leaveQuestions();
    live.forget();
  }

  // --- Shell ---

  buildShell() {
    const { key, gateway } = session.about;
    this.links = new Map();
    this.counts = new Map();
    const nav = h("nav", { class: "pages", "aria-label": "Pages" }, PAGES.filter((page) => page.title && session.may(page.role)).map((page) => {
      const number = h("span", { class: "count", hidden: true });
      const node = h("a", { href: `#/${page.name}`, title: `Keys: g ${page.key}` }, page.title, number);
      this.links.set(page.name, node);
      this.counts.set(page.name, number);
      return node;
    }));
    this.status = h("span", { class: "connection", role: "status" });
    this.theme = h("button", { type: "button", on: { click: () => (nextTheme(), this.showTheme()) } });
    const who = h("div", { class: "who" },
      this.status,
      h("span", { class: "dim" }, `${key.name} · ${key.role}`),
      h("span", { class: "dim" }, `${gateway.host} · ${gateway.version}`),
      h("div", { class: "row" }, this.theme,
        h("button", { type: "button", title: "Keys of the keyboard", "aria-label": "Keys of the keyboard", on: { click: showKeys } }, "?"),
        h("button", { type: "button", on: { click: () => this.signOut() } }, "Sign out")));
    this.main = h("main", { id: "main", tabIndex: -1 });
    const skip = () => this.main.focus();
    fill(this, h("button", { class: "skip", type: "button", on: { click: skip } }, "Skip to the page"),
      h("div", { class: "shell" }, h("div", { class: "side" }, brand(), nav, who), this.main));
    this.showTheme();
    this.showStatus();
  }

  showTheme() {
    this.theme.textContent = { system: "Theme: system", light: "Theme: light", dark: "Theme: dark" }[themeName()];
  }

  showStatus() {
    if (!this.main) return;
    const { kind, words } = live.status;
    const tone = { live: "good", polling: "info", connecting: "warn", paused: "warn", retrying: "warn", refused: "bad" }[kind];
    fill(this.status, h("span", { class: `dot ${tone}`, "aria-hidden": "true" }), { live: "Live", polling: "Polling", connecting: "Connecting", paused: "Paused", retrying: "Not connected", refused: "Refused" }[kind]);
    this.status.title = words;
    this.classList.toggle("stale", kind === "retrying" || kind === "refused");
    if (!this.stale) return;
    fill(this.stale, ["retrying", "refused"].includes(kind) && notice(`What you see is from before. ${words}`, "warn"));
  }

  showCounts() {
    if (!this.main) return;
    for (const page of PAGES) {
      const number = this.counts.get(page.name);
      if (!number || !page.count) continue;
      const found = page.count(live);
      number.hidden = !found;
      number.textContent = String(found);
    }
  }

  showRoute() {
    if (!this.main) return;
    const route = currentRoute();
    const page = pageOf(route.name);
    for (const [name, node] of this.links) {
      if (page && name === (page.under ?? page.name)) {
        node.setAttribute("aria-current", "page");
        node.scrollIntoView({ block: "nearest", inline: "center" }); // on a phone the names are wider than the screen
      } else node.removeAttribute("aria-current");
    }
    this.stale = h("div");
    if (!page) {
      fill(this.main, this.stale, notice(`There is no page ${route.name} here.`, "warn"));
    } else if (!session.may(page.role)) {
      fill(this.main, this.stale, notice(`This page takes the role ${page.role}; the key you signed in with has the role ${session.role}.`, "warn"));
    } else {
      const node = document.createElement(page.element);
      Object.assign(node, { args: route.args, query: route.query });
      fill(this.main, this.stale, node);
    }
    document.title = `${page?.title ?? route.args[0] ?? "Trunkline"} – Trunkline`;
    this.showStatus();
    window.scrollTo(0, 0);
  }

  // --- Keys ---

  onKey(event) {
    if (!this.main || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (/^(input|select|textarea)$/i.test(event.target.tagName)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (this.afterG) {
      this.afterG = false;
      const page = PAGES.find((each) => each.key === event.key && session.may(each.role));
      if (page) go(page.name);
      return;
    }
    if (event.key === "g") {
      this.afterG = true;
      setTimeout(() => (this.afterG = false), 1500);
    } else if (event.key === "/") {
      event.preventDefault();
      this.main.querySelector("input.filter")?.focus();
    } else if (event.key === "t") {
      nextTheme();
      this.showTheme();
    } else if (event.key === "?") {
      showKeys();
    }
  }
}

function brand() {
  return h("div", { class: "brand" }, h("img", { src: "icon.svg", alt: "" }), "Trunkline");
}

function showKeys() {
  const rows = [["g, then a letter", "a page:"], ...PAGES.filter((page) => page.key && session.may(page.role)).map((page) => [`g ${page.key}`, page.title]),
    ["/", "the filter of the page"], ["t", "light, dark, or as the system has it"], ["arrows, Enter", "in a map: from cell to cell, and to the host"], ["Esc", "leave a dialog or a field"]];
  show("Keys of the keyboard", h("table", {}, h("tbody", {}, rows.map(([keys, words]) => h("tr", {}, h("td", {}, h("code", {}, keys)), h("td", {}, words))))));
}
