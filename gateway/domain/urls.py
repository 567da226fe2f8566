"""URLs that this gateway fetches from: which ones can be used at all. Pure."""

import re
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

_PLAIN = re.compile(r"[\x21-\x7e]+")


class BadUrl(ValueError):
    """Not a URL that documents are fetched from. The message says why."""


def check_url(url: str) -> SplitResult:
    """The parts of ``url``, which is HTTPS, or HTTP of this machine itself. Raises BadUrl."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise BadUrl(f"{url[:200]!r} is no URL: {error}") from None
    if _PLAIN.fullmatch(url) is None or not host or parts.username is not None or parts.fragment:
        raise BadUrl(f"{url[:200]!r} cannot be used: write https://HOST/PATH")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_own(host)):
        raise BadUrl(f"{url[:200]!r} is not https; plain http is for addresses of this machine only")
    return parts


def is_own(host: str) -> bool:
    """Whether ``host`` is an address of this machine itself, written out, or ``localhost``."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
