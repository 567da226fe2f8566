// node custom_resources.mjs PACKAGES_FOLDER < OBJECTS: what the validators of @kubernetes-models say against each of a JSON
// array of objects, as a JSON array of arrays of texts; null for a kind that they do not know. They were generated from the
// Go types of the projects, and read every member that they know: what they never read is unknown.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const PACKAGES = {
  "gateway.networking.k8s.io": "gateway-api",
  "keda.sh": "keda",
  "monitoring.coreos.com": "prometheus-operator",
};
const PACKAGES_FOLDER = process.argv[2];

function watched(value, path, unread) {
  if (value === null || typeof value !== "object") return value;
  const copy = Array.isArray(value) ? [] : {};
  for (const [name, each] of Object.entries(value)) {
    unread.add(`${path}/${name}`);
    copy[name] = watched(each, `${path}/${name}`, unread);
  }
  return new Proxy(copy, {
    get(target, name, receiver) {
      if (typeof name === "string") unread.delete(`${path}/${name}`);
      return Reflect.get(target, name, receiver);
    },
  });
}

function under(path, paths) {
  return paths.some((each) => path.startsWith(each + "/"));
}

async function errors(object) {
  const [group, version] = object.apiVersion.split("/");
  if (!(group in PACKAGES)) return null;
  const name = `@kubernetes-models/${PACKAGES[group]}/${group}/${version}/${object.kind}.js`;
  let kind;
  try {
    kind = (await import(pathToFileURL(`${PACKAGES_FOLDER}/node_modules/${name}`)))[object.kind];
  } catch (error) {
    return [`${name}: ${error.message}`];
  }
  const unread = new Set();
  const said = [];
  const whole = watched(object, "", unread);
  try {
    kind.prototype.validate.call(whole);
  } catch (error) {
    said.push(error.message);
  }
  const unknown = [...unread];
  return [...said, ...unknown.filter((path) => !under(path, unknown)).map((path) => `${path}: unknown`)];
}

const objects = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(await Promise.all(objects.map(errors))));
