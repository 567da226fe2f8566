// Anthropic's Node SDK. All its checks are about /v1/messages.
import assert from 'node:assert/strict'
import Anthropic from '@anthropic-ai/sdk'
import { zodOutputFormat } from '@anthropic-ai/sdk/helpers/zod'
import { z } from 'zod'
import { FACTS, QUESTION, SYSTEM, WEATHER, WORDS, isWeather, run, same } from './checks.mjs'

const client = new Anthropic({ baseURL: FACTS.url, apiKey: FACTS.key, maxRetries: 0 })
const tools = [{ name: 'weather', description: 'The weather.', input_schema: WEATHER }]
const tool_choice = { type: 'tool', name: 'weather' }
const asked = (text, more = {}) => ({
  model: FACTS.model,
  max_tokens: 300,
  system: SYSTEM,
  messages: [{ role: 'user', content: text }],
  ...more,
})
const call = (message) => message.content.find((block) => block.type === 'tool_use')

await run({
  async messages() {
    const answer = await client.messages.create(asked(WORDS))
    same(answer.content[0].text, WORDS)
    const { max_tokens, ...counted } = asked(WORDS)
    const { input_tokens } = await client.messages.countTokens(counted)
    assert.equal(input_tokens, answer.usage.input_tokens + (answer.usage.cache_read_input_tokens ?? 0))
  },
  async stream() {
    let text = ''
    const events = client.messages.stream(asked(WORDS)).on('text', (piece) => (text += piece))
    const final = await events.finalMessage()
    same(text, WORDS)
    assert.equal(final.content[0].text, text)
  },
  async tools() {
    const first = await client.messages.create(asked(QUESTION, { tools, tool_choice }))
    isWeather(call(first).input)
    const result = { type: 'tool_result', tool_use_id: call(first).id, content: '7 degrees' }
    const request = asked(QUESTION, { tools, tool_choice: { type: 'none' } })
    request.messages.push({ role: 'assistant', content: first.content }, { role: 'user', content: [result] })
    same((await client.messages.create(request)).content[0].text, '7 degrees')
    isWeather(call(await client.messages.stream(asked(QUESTION, { tools, tool_choice })).finalMessage()).input)
  },
  async structured() {
    const format = zodOutputFormat(z.object({ city: z.string(), celsius: z.number().int() }))
    const answer = await client.messages.parse(asked(QUESTION, { output_config: { format } }))
    isWeather(answer.parsed_output)
  },
})
