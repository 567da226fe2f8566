// Elements from names and text. Nothing here makes markup of a text: what comes from outside becomes a text
// node or an attribute that runs nothing, whatever it holds.

const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "tabIndex", "open", "selected"]);

// h("a", { class: "x", href: "#/fleet", on: { click } }, "text", child, …)
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (name === "data") {
      Object.assign(node.dataset, value);
    } else if (name === "href" || name === "src") {
      node.setAttribute(name, safeAddress(value));
    } else if (PROPERTIES.has(name)) {
      node[name] = value;
    } else if (/^on|^style$|^srcdoc$/i.test(name)) {
      throw new TypeError(`${name} is not set by its name`);
    } else {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(node, child);
    else if (child instanceof Node) node.appendChild(child);
    else if (child !== null && child !== undefined && child !== false) node.appendChild(document.createTextNode(String(child)));
  }
}

// Only places within this page, of this gateway, or a file that the page itself made.
export function safeAddress(value) {
  const text = String(value);
  return /^(#|\/(?!\/)|blob:|[\w-]+\.svg$)/.test(text) ? text : "#";
}

export function fill(node, ...children) {
  node.replaceChildren();
  append(node, children);
  return node;
}

export function setText(node, text) {
  const wanted = String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

export const link = (route, ...children) => h("a", { href: `#/${route.map(encodeURIComponent).join("/")}` }, ...children);

// A name of a colour from the style sheet, for canvases.
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
