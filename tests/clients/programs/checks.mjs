// What the programs of this directory share: see checks.py.
import assert from 'node:assert/strict'

export const FACTS = JSON.parse(process.argv[2])
export const WORDS = 'three plain words'
export const SYSTEM = 'You are brief.'
export const QUESTION = 'What is the weather in Oslo?'
export const WEATHER = {
  type: 'object',
  properties: { city: { type: 'string' }, celsius: { type: 'integer' } },
  required: ['city', 'celsius'],
  additionalProperties: false,
}

export function same(found, text) {
  assert.ok(found.trim(), 'the answer is empty')
  if (FACTS.echoes) assert.equal(found, `You said: ${text}`)
}

export function isWeather(given) {
  const found = typeof given === 'string' ? JSON.parse(given) : given
  assert.equal(typeof found.city, 'string')
  assert.ok(Number.isInteger(found.celsius))
}

export function isVector(found) {
  assert.ok(found.length >= 2 && found.every((each) => typeof each === 'number'), `no vector: ${found}`)
}

export async function run(checks) {
  for (const [check, does] of Object.entries(checks)) {
    const said = { check, ok: true, detail: '' }
    try {
      await does()
    } catch (error) {
      Object.assign(said, { ok: false, detail: `${error.name}: ${error.message}`.slice(0, 600) })
    }
    console.log(JSON.stringify(said))
  }
}
