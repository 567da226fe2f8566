// The Vercel AI SDK, with its providers for servers like OpenAI's, for OpenAI (responses) and for Anthropic.
import assert from 'node:assert/strict'
import { createAnthropic } from '@ai-sdk/anthropic'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { embed, generateObject, generateText, jsonSchema, streamText, tool } from 'ai'
import { FACTS, QUESTION, SYSTEM, WEATHER, WORDS, isVector, isWeather, run, same } from './checks.mjs'

const { base_url: baseURL, key: apiKey } = FACTS
const like = createOpenAICompatible({ name: 'gateway', baseURL, apiKey, supportsStructuredOutputs: true })
const openai = createOpenAI({ baseURL, apiKey })
const anthropic = createAnthropic({ baseURL, apiKey })
const asked = { system: SYSTEM, maxOutputTokens: 300, maxRetries: 0 }
const schema = jsonSchema(WEATHER)
const tools = { weather: tool({ description: 'The weather.', inputSchema: schema }) }

async function textOf(model) {
  same((await generateText({ ...asked, model, prompt: WORDS })).text, WORDS)
  await streamed(model)
}

async function streamed(model) {
  let text = ''
  const failures = []
  const onError = ({ error }) => failures.push(error)
  for await (const piece of streamText({ ...asked, model, prompt: WORDS, onError }).textStream) text += piece
  if (failures.length) throw failures[0]
  same(text, WORDS)
}

async function callsTool(model) {
  const toolChoice = { type: 'tool', toolName: 'weather' }
  const answer = await generateText({ ...asked, model, prompt: QUESTION, tools, toolChoice })
  assert.equal(answer.toolCalls.length, 1)
  isWeather(answer.toolCalls[0].input)
}

await run({
  async chat() {
    const answer = await generateText({ ...asked, model: like.chatModel(FACTS.model), prompt: WORDS })
    same(answer.text, WORDS)
    assert.ok(answer.usage.outputTokens > 0)
  },
  async stream() {
    await streamed(like.chatModel(FACTS.model))
  },
  async tools() {
    await callsTool(like.chatModel(FACTS.model))
  },
  async structured() {
    for (const model of [like.chatModel(FACTS.model), openai.responses(FACTS.model)]) {
      isWeather((await generateObject({ ...asked, model, schema, prompt: QUESTION })).object)
    }
  },
  async responses() {
    await textOf(openai.responses(FACTS.model))
    await callsTool(openai.responses(FACTS.model))
  },
  async messages() {
    await textOf(anthropic(FACTS.model))
    await callsTool(anthropic(FACTS.model))
  },
  async embeddings() {
    isVector((await embed({ model: like.textEmbeddingModel(FACTS.embedder), value: WORDS, maxRetries: 0 })).embedding)
  },
})
