import { App } from "./app.js";
import { PAGES } from "./pages/index.js";

for (const page of PAGES) customElements.define(page.element, page.type);
customElements.define("tl-app", App);
