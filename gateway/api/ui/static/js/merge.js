// JSON merge patches (RFC 7396). Names of agents and models are members, so objects here have no prototype:
// one that is called __proto__ is a name like any other.

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

export function merged(target, patch) {
  if (!isObject(patch)) return patch;
  const into = isObject(target) && Object.getPrototypeOf(target) === null ? target : Object.create(null);
  for (const name of Object.keys(patch)) {
    const value = patch[name];
    if (value === null) delete into[name];
    else into[name] = merged(into[name], value);
  }
  return into;
}

// A copy of what was parsed, whose objects have no prototype. Nulls stay.
export function bare(value) {
  if (Array.isArray(value)) return value.map(bare);
  if (!isObject(value)) return value;
  const copy = Object.create(null);
  for (const name of Object.keys(value)) copy[name] = bare(value[name]);
  return copy;
}
