// The page is named behind the hash: #/fleet, #/host/gpu-7. So no path of the server depends on it, and the key
// never goes into an address.

export function currentRoute() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { name: parts[0] || "fleet", args: parts.slice(1), query: new URLSearchParams(query) };
}

export function go(...parts) {
  location.hash = `/${parts.map(encodeURIComponent).join("/")}`;
}

// Remember filters in the address, without an entry in the history for each letter.
export function setQuery(values) {
  const [path] = location.hash.split("?");
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value));
  const text = query.toString();
  history.replaceState(null, "", (path || "#/fleet") + (text ? `?${text}` : ""));
}
