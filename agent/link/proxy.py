"""Which proxy leads to the gateway, by the usual environment variables. Pure."""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit


def proxy_for(url: str, environ: Mapping[str, str]) -> str | None:
    """The proxy's URL for ``url`` (``ws[s]://`` or ``http[s]://``), or None to connect directly.

    ``HTTPS_PROXY`` or ``HTTP_PROXY`` by the URL's scheme, else ``ALL_PROXY``; in lower case they win.
    Loopback and ``NO_PROXY`` (hosts, domains, addresses, networks, ``host:port``, ``*``) need no proxy.
    """
    parts = urlsplit(url)
    secure = parts.scheme in ("wss", "https")
    host, port = (parts.hostname or "").lower(), parts.port or (443 if secure else 80)
    proxy = _first(environ, "https_proxy" if secure else "http_proxy", "all_proxy")
    exempt = (entry.strip() for entry in _first(environ, "no_proxy").lower().split(","))
    if not proxy or is_loopback(host) or any(_matches(host, port, entry) for entry in exempt if entry):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def is_loopback(host: str) -> bool:
    """True for ``localhost``, names under it, and loopback addresses."""
    host = host.lower().rstrip(".").strip("[]")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _first(environ: Mapping[str, str], *names: str) -> str:
    for name in names:
        value = environ.get(name) or environ.get(name.upper())
        if value and value.strip():
            return value.strip()
    return ""


def _matches(host: str, port: int, entry: str) -> bool:
    if entry == "*":
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        pass
    name, _, number = entry.rpartition(":")
    if name and number.isdigit():
        if int(number) != port:
            return False
        entry = name
    domain = entry.strip("[]").removeprefix("*").lstrip(".")
    return host == domain or host.endswith(f".{domain}")
