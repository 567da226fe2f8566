// Light or dark: as the system has it, until somebody chooses. The choice is the one thing kept between visits.

const CHOICE = "trunkline.theme";
const system = matchMedia("(prefers-color-scheme: dark)");
let unkept = "system"; // of this visit, where storage is turned off

function choice() {
  try {
    return localStorage.getItem(CHOICE) ?? "system";
  } catch {
    return unkept;
  }
}

export function applyTheme() {
  const chosen = choice();
  const theme = chosen === "system" ? (system.matches ? "dark" : "light") : chosen;
  document.documentElement.dataset.theme = theme;
  document.dispatchEvent(new CustomEvent("tl-theme", { detail: theme }));
}

export function nextTheme() {
  const order = ["system", "light", "dark"];
  const next = order[(order.indexOf(choice()) + 1) % order.length];
  try {
    localStorage.setItem(CHOICE, next);
  } catch {
    unkept = next;
  }
  applyTheme();
}

export const themeName = choice;

system.addEventListener("change", applyTheme);
