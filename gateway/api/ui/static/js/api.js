// Requests to this gateway with the key of whoever is signed in.

import { session } from "./session.js";

const TIMEOUT_MS = 30000;

// Of "." and "..", also when they are encoded, a browser makes another address. Aliases and models may hold them.
const UNASKABLE = "No browser can ask for this name, because a part of it is . or .. between slashes: use the trunkline command on the gateway's host.";

// What went wrong, in the gateway's words where it said any. `status` 0: nothing was answered.
export class ApiError extends Error {
  constructor(status, message, code = "", requestId = "") {
    super(message);
    this.status = status;
    this.code = code;
    this.requestId = requestId;
  }

  get words() {
    return this.requestId ? `${this.message} (request ${this.requestId})` : this.message;
  }
}

// The gateway's root, from where this page lies: a proxy may have it below a path of its own.
const ROOT = new URL("../", document.baseURI).pathname;

// Where agents dial.
export const gatewayUrl = (location.origin + ROOT).replace(/\/$/, "");

export const place = (path) => ROOT + path.replace(/^\//, "");

export async function open(path, { method = "GET", body, key = session.key, signal, headers = {}, timeoutMs = TIMEOUT_MS } = {}) {
  const limit = timeoutMs ? AbortSignal.timeout(timeoutMs) : null;
  const signals = [signal, limit].filter(Boolean);
  const address = place(path);
  if (new URL(address, location.href).pathname !== address.split("?")[0]) throw new ApiError(0, UNASKABLE);
  let response;
  try {
    response = await fetch(address, {
      method,
      credentials: "omit",
      cache: "no-store",
      redirect: "error",
      signal: signals.length ? AbortSignal.any(signals) : undefined,
      headers: { ...headers, ...(key ? { authorization: `Bearer ${key}` } : {}), ...(body === undefined ? {} : { "content-type": "application/json" }) },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, limit?.aborted ? "The gateway did not answer in time." : "The gateway cannot be reached.");
  }
  if (!response.ok) throw await failure(response);
  return response;
}

async function failure(response) {
  let said = null;
  try {
    said = (await response.json()).error;
  } catch {
    // A proxy in front answered.
  }
  const message = typeof said?.message === "string" ? said.message : `The answer was HTTP ${response.status}.`;
  const error = new ApiError(response.status, message, said?.code ?? "", response.headers.get("x-request-id") ?? "");
  if (error.status === 401 && session.about) document.dispatchEvent(new CustomEvent("tl-refused", { detail: error }));
  return error;
}

// What is answered, by `read`; it may break off, or a proxy in front may have answered with a page of its own.
async function whole(path, options, read) {
  const response = await open(path, options);
  try {
    return await read(response);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(0, "The answer broke off, or it is none of a gateway's.");
  }
}

export const call = (path, options) => whole(path, options, (response) => response.json());
export const get = (path, signal) => call(path, { signal });
export const text = (path, signal) => whole(path, { signal }, (response) => response.text());
export const post = (path, body = {}) => call(path, { method: "POST", body });
export const put = (path, body = {}) => call(path, { method: "PUT", body });
export const patch = (path, body = {}) => call(path, { method: "PATCH", body });
export const remove = (path, body) => call(path, { method: "DELETE", body });

// A name as one segment of a path; models and aliases may hold slashes, which stay.
export const segment = (name) => encodeURIComponent(name);
export const segments = (name) => name.split("/").map(encodeURIComponent).join("/");
