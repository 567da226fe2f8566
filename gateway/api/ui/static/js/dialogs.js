// Questions in front of the page.

import { h } from "./dom.js";
import { toast } from "./parts.js";

// Ask for fields, each { name, label, type, value, hint, required, options, min, max, step }. `submit` gets their
// values and does what was asked; what it throws is shown and the dialog stays. Resolves to what it returned, or
// to null if it was left. Who leaves it when all is sent already learns what became of it all the same.
export function ask({ title, words, fields = [], action, danger = false, submit }) {
  return new Promise((resolve) => {
    const problem = h("p", { class: "problem", role: "alert" });
    const inputs = new Map(fields.map((field) => [field.name, input(field)]));
    const confirm = h("button", { class: danger ? "danger" : "primary", type: "submit" }, action);
    const cancel = h("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel");
    let [answer, sent] = [null, null];

    const send = async () => {
      confirm.disabled = true;
      problem.textContent = "";
      try {
        answer = (await submit(Object.fromEntries(fields.map((field) => [field.name, valueOf(field, inputs.get(field.name))])))) ?? true;
        dialog.close();
      } catch (error) {
        problem.textContent = error.words ?? error.message;
        if (!dialog.open) toast(problem.textContent, "bad");
      } finally {
        confirm.disabled = false;
      }
    };
    const labelled = fields.map((field) =>
      h("label", { class: "field" }, field.label, inputs.get(field.name), field.hint && h("span", { class: "hint" }, field.hint)));
    const form = h("form", { on: { submit: (event) => (event.preventDefault(), (sent = send())) } }, words && h("p", {}, words), labelled, problem, h("div", { class: "actions" }, cancel, confirm));
    const dialog = show(title, form, async () => (await sent, resolve(answer)));
  });
}

export function show(title, content, onClose = () => {}) {
  const id = `dialog-${Math.random().toString(36).slice(2)}`;
  const dialog = h("dialog", { "aria-labelledby": id }, h("h2", { id }, title), content);
  dialog.addEventListener("close", () => (dialog.remove(), onClose()));
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

// A secret stays until whoever made it has stored it.
export function leaveQuestions() {
  for (const dialog of document.querySelectorAll("dialog")) if (!dialog.querySelector(".secret")) dialog.close();
}

// A secret that the gateway tells this once.
export function showSecret(title, secret, words) {
  return new Promise((resolve) => {
    const said = h("span", { role: "status", class: "small dim" });
    const copy = async () => {
      try {
        await navigator.clipboard.writeText(secret);
        said.textContent = "Copied.";
      } catch {
        said.textContent = "This browser does not let the page copy: select it and copy it yourself.";
      }
    };
    const content = h("div", {},
      h("p", {}, words),
      h("div", { class: "secret" }, h("code", { class: "secret-text" }, secret), h("button", { type: "button", on: { click: copy } }, "Copy")),
      said,
      h("div", { class: "actions" }, h("button", { type: "button", class: "primary", on: { click: () => dialog.close() } }, "I have stored it")));
    const dialog = show(title, content, resolve);
  });
}

function input(field) {
  const common = { name: field.name, required: field.required, autocomplete: "off" };
  if (field.options) return h("select", common, field.options.map(([value, words]) => h("option", { value, selected: value === field.value }, words)));
  const { type = "text", value = "", min, max, step, placeholder } = field;
  return h("input", { ...common, type, value, min, max, step: step ?? (type === "number" ? "any" : null), placeholder, maxlength: 2000 });
}

function valueOf(field, node) {
  const text = node.value.trim();
  if (text === "") return null;
  return field.type === "number" ? Number(text) : text;
}

// "a, b" as a list; nothing as null.
export const names = (text) => (text ? text.split(",").map((each) => each.trim()).filter(Boolean) : null);
