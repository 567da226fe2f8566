// The OpenAI Node SDK, unmodified, against a running gateway. Reads {base_url, key, model, engine} as JSON from its
// first argument and prints one JSON line per check: {"name", "ok", "detail"}. test_openai_node.py judges them.
import OpenAI from "openai";

const { base_url: baseURL, key: apiKey, model, engine } = JSON.parse(process.argv[2]);
const sdk = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "hi" }];
const chat = (more = {}, options = {}) => sdk.chat.completions.create({ model, messages, ...more }, options);
const script = (members) => ({ script: members });

function same(got, wanted) {
  if (JSON.stringify(got) !== JSON.stringify(wanted)) {
    throw new Error(`got ${JSON.stringify(got)}, wanted ${JSON.stringify(wanted)}`);
  }
}

async function gather(stream, piece) {
  let text = "";
  for await (const part of stream) text += piece(part) ?? "";
  return text;
}

async function raises(kind, work) {
  try {
    await work();
  } catch (error) {
    if (error instanceof kind) return error;
    throw new Error(`raised ${error?.constructor?.name}: ${error}, wanted ${kind.name}`);
  }
  throw new Error(`nothing was raised, wanted ${kind.name}`);
}

async function engineIsIdle() {
  const end = Date.now() + 1000;
  let running;
  do {
    running = (await (await fetch(`${engine}/_stats`)).json()).running;
    if (running === 0) return;
    await new Promise((resolve) => setTimeout(resolve, 10));
  } while (Date.now() < end);
  throw new Error(`the engine still runs ${running} requests after a second`);
}

const answer = (await chat({ max_tokens: 4 })).choices[0].message.content;
const checks = {
  "chat streamed is chat": async () => {
    const stream = await chat({ max_tokens: 4, stream: true });
    same(await gather(stream, (chunk) => chunk.choices[0].delta.content), answer);
  },
  "chat streamed with usage": async () => {
    const stream = await chat({ max_tokens: 3, stream: true, stream_options: { include_usage: true } });
    let last;
    for await (const chunk of stream) last = chunk;
    same(last.usage.completion_tokens, 3);
  },
  "completions streamed and not": async () => {
    const plain = await sdk.completions.create({ model, prompt: "once", max_tokens: 4 });
    const stream = await sdk.completions.create({ model, prompt: "once", max_tokens: 4, stream: true });
    same(await gather(stream, (chunk) => chunk.choices[0].text), plain.choices[0].text);
  },
  "embeddings": async () => {
    const vectors = await sdk.embeddings.create({ model, input: ["one", "two"], encoding_format: "float" });
    same(vectors.data.map((entry) => entry.embedding.length), [8, 8]);
  },
  "models": async () => {
    const names = [];
    for await (const entry of sdk.models.list()) names.push(entry.id);
    if (!names.includes(model)) throw new Error(`${model} is not among ${names}`);
    same((await sdk.models.retrieve(model)).id, model);
  },
  "a wrong key": async () => {
    const wrong = new OpenAI({ baseURL, apiKey: "sk-tl-wrong", maxRetries: 0 });
    same((await raises(OpenAI.AuthenticationError, () => wrong.models.list())).code, "invalid_api_key");
  },
  "an unknown model": async () => {
    const error = await raises(OpenAI.NotFoundError, () => chat({ model: "no-such-model" }));
    same(error.code, "model_not_found");
    if (!error.requestID) throw new Error("no request id");
  },
  "a connection refused": async () => {
    const nobody = new OpenAI({ baseURL: "http://127.0.0.1:9/v1", apiKey, maxRetries: 0 });
    await raises(OpenAI.APIConnectionError, () => nobody.models.list());
  },
  "a stream that breaks": async () => {
    const stream = await chat({ stream: true, ...script({ fault: "die", after: 3 }) });
    await raises(OpenAI.APIError, () => gather(stream, (chunk) => chunk.choices[0].delta.content));
  },
  "a timeout frees the engine": async () => {
    await raises(OpenAI.APIConnectionTimeoutError, () => chat(script({ fault: "hang" }), { timeout: 500 }));
    await engineIsIdle();
  },
  "an abort frees the engine": async () => {
    const stream = await chat({ stream: true, max_tokens: 1000, ...script({ tokens_per_s: 20 }) });
    for await (const _ of stream) break;
    stream.controller.abort();
    await engineIsIdle();
  },
  "a 429 is retried after the time its header says": async () => {
    const once = JSON.stringify({ once: [{ status: 429, retry_after: "1" }] });
    await fetch(`${engine}/_script`, { method: "POST", body: once, headers: { "content-type": "application/json" } });
    const began = Date.now();
    await chat({ max_tokens: 2 }, { maxRetries: 1 });
    if (Date.now() - began < 1000) throw new Error(`retried after ${Date.now() - began} ms`);
  },
};

const kinds = {
  400: OpenAI.BadRequestError,
  401: OpenAI.AuthenticationError,
  403: OpenAI.PermissionDeniedError,
  404: OpenAI.NotFoundError,
  409: OpenAI.ConflictError,
  422: OpenAI.UnprocessableEntityError,
  429: OpenAI.RateLimitError,
  500: OpenAI.InternalServerError,
};
for (const [status, kind] of Object.entries(kinds)) {
  checks[`status ${status}`] = () => raises(kind, () => chat(script({ status: Number(status) })));
}

for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(JSON.stringify({ name, ok: true, detail: "" }));
  } catch (error) {
    console.log(JSON.stringify({ name, ok: false, detail: String(error) }));
  }
}
