// OpenAI's Node SDK.
import assert from 'node:assert/strict'
import OpenAI from 'openai'
import { zodResponseFormat, zodTextFormat } from 'openai/helpers/zod'
import { z } from 'zod'
import { FACTS, QUESTION, SYSTEM, WEATHER, WORDS, isVector, isWeather, run, same } from './checks.mjs'

const client = new OpenAI({ baseURL: FACTS.base_url, apiKey: FACTS.key, maxRetries: 0 })
const model = FACTS.model
const Weather = z.object({ city: z.string(), celsius: z.number().int() })
const tools = [{ type: 'function', function: { name: 'weather', parameters: WEATHER, strict: true } }]
const tool_choice = { type: 'function', function: { name: 'weather' } }
const messages = (text) => [
  { role: 'system', content: SYSTEM },
  { role: 'user', content: text },
]

await run({
  async chat() {
    const answer = await client.chat.completions.create({ model, messages: messages(WORDS), max_tokens: 300 })
    same(answer.choices[0].message.content, WORDS)
    assert.ok(answer.usage.completion_tokens > 0)
  },
  async stream() {
    const events = client.chat.completions.stream({ model, messages: messages(WORDS), max_tokens: 300 })
    let text = ''
    for await (const chunk of events) text += chunk.choices[0]?.delta?.content ?? ''
    same(text, WORDS)
    assert.equal(text, await events.finalContent())
  },
  async tools() {
    const asked = { model, tools, tool_choice, messages: messages(QUESTION), max_tokens: 300 }
    const first = await client.chat.completions.create(asked)
    const [call] = first.choices[0].message.tool_calls
    isWeather(call.function.arguments)
    const result = { role: 'tool', tool_call_id: call.id, content: '7 degrees' }
    const said = [...messages(QUESTION), first.choices[0].message, result]
    const second = await client.chat.completions.create({ ...asked, tool_choice: 'none', messages: said })
    same(second.choices[0].message.content, '7 degrees')
    const streamed = await client.chat.completions.stream(asked).finalChatCompletion()
    isWeather(streamed.choices[0].message.tool_calls[0].function.arguments)
  },
  async structured() {
    const response_format = zodResponseFormat(Weather, 'weather')
    const asked = { model, messages: messages(QUESTION), response_format, max_tokens: 300 }
    isWeather((await client.chat.completions.parse(asked)).choices[0].message.parsed)
    const text = { format: zodTextFormat(Weather, 'weather') }
    const response = await client.responses.parse({ model, input: QUESTION, text, max_output_tokens: 300 })
    isWeather(response.output_parsed)
  },
  async responses() {
    const asked = { model, instructions: SYSTEM, input: WORDS, max_output_tokens: 300 }
    same((await client.responses.create(asked)).output_text, WORDS)
    let text = ''
    const events = client.responses.stream(asked)
    for await (const event of events) if (event.type === 'response.output_text.delta') text += event.delta
    same(text, WORDS)
    assert.equal((await events.finalResponse()).output_text, text)
  },
  async embeddings() {
    const found = await client.embeddings.create({ model: FACTS.embedder, input: [WORDS, QUESTION] })
    assert.equal(found.data.length, 2)
    isVector(found.data[0].embedding)
  },
})
