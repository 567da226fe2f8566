"""Where the tunnel of a gateway is dialled, which proxy leads there, and what TLS trusts."""

import ipaddress
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from shared.link.dialer import DialSettings
from shared.process.settings import ConfigError


def tunnel_url(gateway: str) -> str:
    """The tunnel's URL at a gateway's. Raises ValueError, saying what is wrong."""
    parts = urlsplit(gateway)
    scheme = {"https": "wss", "wss": "wss", "http": "ws", "ws": "ws"}.get(parts.scheme)
    if scheme is None or not parts.hostname or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("a gateway's URL is written https://HOST[:PORT]")
    _ = parts.port  # raises ValueError for what is no port
    before, clients, _ = f"{parts.path}/".partition("/v1/")
    if clients:
        base = f"{parts.scheme}://{parts.netloc}{before}"
        raise ValueError(f"/v1 is where clients ask; agents dial the gateway itself: write {base}")
    if scheme == "ws" and not is_loopback(parts.hostname):
        raise ValueError(f"http:// goes to loopback only; across a network, write https://{parts.netloc}")
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/tunnel')}/tunnel"


def dial_settings(
    gateway: str,
    environ: Mapping[str, str],
    *,
    ca_file: Path | None = None,
    client_cert: Path | None = None,
    client_key: Path | None = None,
    timeout_s: float = 10.0,
) -> DialSettings:
    """How the gateway of that URL is dialled. ``environ`` may name a proxy; ``ca_file`` holds certificates to
    trust in place of the system's; ``client_cert`` and ``client_key`` are PEM files to show to its TLS.

    Raises :class:`ConfigError` when a file cannot be used, and ValueError for a URL that cannot be dialled.
    """
    url = tunnel_url(gateway)
    tls: ssl.SSLContext | None = None
    if url.startswith("wss:"):
        try:
            tls = ssl.create_default_context(cafile=ca_file)
        except OSError as error:  # ssl.SSLError among them
            raise ConfigError(f"ca_file = {str(ca_file)!r}: {error}") from error
        if client_cert is not None:
            _show_certificate(tls, client_cert, client_key)
    return DialSettings(url=url, proxy=proxy_for(url, environ), tls=tls, timeout_s=timeout_s)


def check_peer_address(address: str, gateway: str) -> None:
    """``address`` is that of a process of the gateway at ``gateway``, as this one says. Raises ValueError for
    one on this host where the gateway's is not: it means the gateway's host."""
    there, known = (urlsplit(each).hostname or "" for each in (address, gateway))
    if is_loopback(there) and not is_loopback(known):
        raise ValueError("it is an address on this host, and the gateway's is not")


def _show_certificate(tls: ssl.SSLContext, cert: Path, key: Path | None) -> None:
    try:
        tls.load_cert_chain(cert, key, password=lambda: "")
    except (OSError, ValueError) as error:
        used = f"client_cert = {str(cert)!r}, client_key = {str(key)!r}"
        raise ConfigError(f"{used}: {error}") from error


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
