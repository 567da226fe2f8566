// The pages, in the order of the navigation. `count` is the number beside a name that calls for a look.

import { AlertsPage, alertsOf } from "./alerts.js";
import { FleetPage } from "./fleet.js";
import { FlowPage } from "./flow.js";
import { HostPage } from "./host.js";
import { JobsPage } from "./jobs.js";
import { KeysPage } from "./keys.js";
import { ModelsPage } from "./models.js";
import { RequestPage } from "./request.js";
import { RequestsPage } from "./requests.js";
import { SettingsPage } from "./settings.js";
import { UsagePage } from "./usage.js";
import { WhatIfPage } from "./whatif.js";

export const PAGES = [
  { name: "fleet", title: "Fleet", key: "f", role: "viewer", element: "tl-fleet", type: FleetPage },
  { name: "host", under: "fleet", role: "viewer", element: "tl-host", type: HostPage },
  { name: "flow", title: "Flow", key: "w", role: "viewer", element: "tl-flow", type: FlowPage },
  { name: "models", title: "Models", key: "m", role: "viewer", element: "tl-models", type: ModelsPage },
  { name: "requests", title: "Requests", key: "r", role: "viewer", element: "tl-requests", type: RequestsPage },
  { name: "request", under: "requests", role: "viewer", element: "tl-request", type: RequestPage },
  { name: "jobs", title: "Jobs", key: "j", role: "viewer", element: "tl-jobs", type: JobsPage },
  { name: "usage", title: "Usage", key: "u", role: "admin", element: "tl-usage", type: UsagePage },
  { name: "keys", title: "Keys", key: "k", role: "admin", element: "tl-keys", type: KeysPage },
  { name: "whatif", title: "What if", key: "i", role: "viewer", element: "tl-whatif", type: WhatIfPage },
  { name: "alerts", title: "Alerts", key: "a", role: "viewer", element: "tl-alerts", type: AlertsPage, count: (live) => alertsOf(live.state).length },
  { name: "settings", title: "Settings", key: "s", role: "operator", element: "tl-settings", type: SettingsPage },
];

export const pageOf = (name) => PAGES.find((page) => page.name === name) ?? null;
