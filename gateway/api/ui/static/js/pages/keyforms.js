// The questions behind the buttons of the page of keys.

import { gatewayUrl, patch, post, remove, segment } from "../api.js";
import { ask, names, showSecret } from "../dialogs.js";
import { count, day } from "../format.js";
import { toast } from "../parts.js";

const ROLES = [["", "none"], ["viewer", "viewer: look"], ["operator", "operator: drain hosts, change aliases"], ["admin", "admin: everything"]];
const DAY_S = 86400;
const RATES = [
  { name: "rpm", label: "Requests per minute", type: "number", min: 0 },
  { name: "tpm", label: "Tokens per minute", type: "number", min: 0 },
  { name: "concurrency", label: "Requests at once", type: "number", min: 0 },
];
const TENANT = [
  ...RATES,
  { name: "queue_share", label: "Share of the queue, 0 to 1", type: "number", min: 0, max: 1 },
  { name: "weight", label: "Weight beside tenants of weight 1", type: "number", min: 0 },
  { name: "tokens_per_day", label: "Tokens in a day", type: "number", min: 0 },
  { name: "tokens_per_month", label: "Tokens in a month", type: "number", min: 0 },
  { name: "gpu_seconds_per_day", label: "GPU-seconds in a day", type: "number", min: 0 },
  { name: "gpu_seconds_per_month", label: "GPU-seconds in a month", type: "number", min: 0 },
  { name: "money_per_day", label: "Money in a day", type: "number", min: 0 },
  { name: "money_per_month", label: "Money in a month", type: "number", min: 0 },
];
const EMPTY_HINT = "Empty: no limit.";

// Only what was given: what is not sent has its default.
const given = (values) => Object.fromEntries(Object.entries(values).filter(([, value]) => value !== null));

export async function newKey(again) {
  const made = await ask({
    title: "New key",
    fields: [
      { name: "name", label: "Name", required: true },
      { name: "tenant", label: "Tenant", value: "default", required: true, hint: "Whom it belongs to." },
      { name: "models", label: "Models", hint: "Patterns, separated by commas (llama-*). Empty: every model." },
      { name: "days", label: "Days it works", type: "number", min: 0, hint: "Empty: for ever." },
      { name: "role", label: "Role on the admin API", options: ROLES },
      ...RATES.map((field) => ({ ...field, hint: EMPTY_HINT })),
    ],
    action: "Make it",
    submit: ({ days, models, ...values }) => post("/admin/keys", given({ ...values, models: names(models), life_s: days === null ? null : days * DAY_S })),
  });
  if (!made) return;
  again();
  await showSecret(`Key ${made.name}`, made.key, "Only its hash is kept: store it now, it is not shown again.");
}

export async function changeKey(row, again) {
  const changed = await ask({
    title: `Change ${row.name}`,
    fields: [{ name: "role", label: "Role on the admin API", options: ROLES, value: row.role ?? "" }, ...RATES.map((field) => ({ ...field, value: row[field.name] ?? "", hint: EMPTY_HINT }))],
    action: "Change",
    submit: (values) => patch(`/admin/keys/${segment(row.name)}`, values),
  });
  if (changed) (toast(`${row.name} is changed, from the next request on.`), again());
}

export async function rotateKey(row, again) {
  const made = await ask({
    title: `New secret for ${row.name}`,
    fields: [{ name: "hours", label: "Hours for which the old one works beside it", type: "number", min: 0, value: 24, required: true }],
    action: "Make it",
    submit: ({ hours }) => post(`/admin/keys/${segment(row.name)}/rotate`, { overlap_s: hours * 3600 }),
  });
  if (!made) return;
  again();
  const until = made.old_secret_until_s ? `works until ${day(made.old_secret_until_s)}` : "no longer works";
  await showSecret(`New secret of ${row.name}`, made.key, `The old one ${until}. Store this one now, it is not shown again.`);
}

export async function revokeKey(row, again) {
  const done = await ask({ title: `Revoke ${row.name}?`, words: `The gateway refuses it from the next request on. Tenant: ${row.tenant}.`, action: "Revoke", danger: true, submit: () => remove(`/admin/keys/${segment(row.name)}`) });
  if (done) (toast(`${row.name} is revoked.`), again());
}

export async function newTenant(again) {
  const made = await ask({
    title: "Limit a tenant",
    fields: [{ name: "tenant", label: "Tenant", required: true }, ...TENANT.map((field) => ({ ...field, hint: EMPTY_HINT }))],
    action: "Set",
    submit: ({ tenant, ...values }) => patch(`/admin/tenants/${segment(tenant)}`, given(values)),
  });
  if (made) again();
}

export async function changeTenant(row, again) {
  const changed = await ask({
    title: `Limits of ${row.name}`,
    fields: TENANT.map((field) => ({ ...field, value: row[field.name] ?? "", hint: EMPTY_HINT })),
    action: "Set",
    submit: (values) => patch(`/admin/tenants/${segment(row.name)}`, values),
  });
  if (changed) (toast(`${row.name} has these limits from the next request on.`), again());
}

export async function removeTenant(row, again) {
  const done = await ask({ title: `Take all limits of ${row.name} away?`, words: "Its keys and its usage stay.", action: "Remove", danger: true, submit: () => remove(`/admin/tenants/${segment(row.name)}`) });
  if (done) again();
}

export async function joinToken(again) {
  const made = await ask({
    title: "New join token",
    fields: [
      { name: "uses", label: "Hosts that may join with it", type: "number", min: 1, value: 1, required: true },
      { name: "hours", label: "Hours it can be used", type: "number", min: 0, value: 24, required: true },
      { name: "models", label: "Models they may serve", hint: "Patterns, separated by commas. Empty: every model." },
    ],
    action: "Make it",
    submit: ({ uses, hours, models }) => post("/admin/tokens", given({ uses, life_s: hours * 3600, models: names(models) })),
  });
  if (!made) return;
  again();
  await showSecret("Join token", made.token, `For ${count(made.uses_allowed)} host(s), until ${day(made.expires_s)}. On the GPU host: trunkline agent --gateway ${gatewayUrl} --join TOKEN`);
}

export async function revokeToken(row, again) {
  const done = await ask({ title: "Revoke this join token?", words: "Hosts that joined with it stay.", action: "Revoke", danger: true, submit: () => remove(`/admin/tokens/${segment(row.id)}`) });
  if (done) again();
}
