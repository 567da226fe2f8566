// The pages, in the order of the navigation. `count` is the number beside a name that calls for a look.

import { AlertsPage, alertsOf } from "./alerts.js";
import { FleetPage } from "./fleet.js";
import { HostPage } from "./host.js";
import { ModelsPage } from "./models.js";
import { SettingsPage } from "./settings.js";

export const PAGES = [
  { name: "fleet", title: "Fleet", key: "f", role: "viewer", element: "tl-fleet", type: FleetPage },
  { name: "host", under: "fleet", role: "viewer", element: "tl-host", type: HostPage },
  { name: "models", title: "Models", key: "m", role: "viewer", element: "tl-models", type: ModelsPage },
  { name: "alerts", title: "Alerts", key: "a", role: "viewer", element: "tl-alerts", type: AlertsPage, count: (live) => alertsOf(live.state).length },
  { name: "settings", title: "Settings", key: "s", role: "operator", element: "tl-settings", type: SettingsPage },
];

export const pageOf = (name) => PAGES.find((page) => page.name === name) ?? null;
