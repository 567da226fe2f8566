// Server-sent events over fetch: EventSource can send no key.

import { open } from "./api.js";

const LONGEST_CHARS = 64 * 1024 * 1024;

// Splits what comes into events, however it is cut into pieces.
export class EventParser {
  constructor() {
    this.rest = "";
  }

  // The whole events in what has come so far, as { id, event, data }.
  feed(piece) {
    this.rest += piece;
    if (this.rest.length > LONGEST_CHARS) throw new Error("an event is longer than this page takes");
    const blocks = this.rest.replace(/\r\n?/g, "\n").split("\n\n");
    this.rest = blocks.pop();
    return blocks.map(readEvent).filter((event) => event.data !== "");
  }
}

function readEvent(block) {
  const event = { id: "", event: "message", data: "" };
  const data = [];
  for (const line of block.split("\n")) {
    const at = line.indexOf(":");
    if (at === 0) continue;
    const name = at < 0 ? line : line.slice(0, at);
    const value = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "");
    if (name === "data") data.push(value);
    else if (name === "id" || name === "event") event[name] = value;
  }
  event.data = data.join("\n");
  return event;
}

// Nothing came for too long.
export class Silence extends Error {}

// Yields events until the stream ends. Throws Silence when nothing comes for `silenceMs`, no head either.
export async function* events(path, { lastId, signal, silenceMs, method, body }) {
  const headers = { accept: "text/event-stream", ...(lastId ? { "last-event-id": lastId } : {}) };
  const ended = new AbortController();
  const options = { method, body, headers, signal: AbortSignal.any([signal, ended.signal]), timeoutMs: 0 };
  const parser = new EventParser();
  try {
    const response = await within(open(path, options), silenceMs);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await within(reader.read(), silenceMs);
      if (done) return;
      yield* parser.feed(value);
    }
  } finally {
    ended.abort();
  }
}

function within(promise, limitMs) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Silence("Nothing came for too long.")), limitMs);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}
