"""Where an engine's answer leads its client: header fields with addresses, rewritten or left out. Pure.

A client follows a redirect with its key and its prompt, so an engine, or whoever speaks for one, must not
choose where. An address is passed on only when it lies on the engine itself, and then as the client reaches
it: under ``/engines/{model}``. On all other paths there is none that leads back there.
"""

import re

from gateway.domain.errors import BadRequest, EngineError
from gateway.domain.surface import PATH_BYTES, EngineTarget, engine_target
from shared.protocol.messages import Headers

NOT_MODIFIED = 304

ADDRESSES = frozenset(("location", "content-location", "operation-location", "sourcemap", "x-sourcemap"))
"""Fields whose whole value is an address."""
_LEFT_OUT = frozenset(("uri", "azure-asyncoperation", "reporting-endpoints"))
LINKS = 32
"""Links in one field."""

_REFERENCE = re.compile(r"[\x21\x23-\x3b\x3d\x3f-\x5b\x5d\x5f\x61-\x7a\x7c\x7e]+\Z")
"""Printable, without blanks, quotes, angle brackets and backslash: nothing a parser would repair."""
_REFRESH = re.compile(r"[ \t]*(?P<after>\d{1,9})(?:\.\d*)?[ \t]*(?:[;,][ \t]*(?P<rest>.*))?\Z", re.DOTALL)
_URL = re.compile(r"(?:url[ \t]*=[ \t]*)?(?P<quote>['\"]?)(?P<url>[^'\"]*)(?P=quote)[ \t]*\Z", re.IGNORECASE)
_PARAMETERS = re.compile(r"(?:[ \t]*;[ \t]*[A-Za-z0-9*_-]+(?:=(?:\"[^\"\\]*\"|[^\s\",;]*))?)*[ \t]*\Z")


def client_reference(value: str, target: EngineTarget) -> str | None:
    """The address ``value`` in an answer to ``target``, as its client reaches the same place.

    None for one that lies elsewhere, could be read as if, or is none that a client could ask for.
    """
    value = value.strip(" \t")
    if not target.base or len(value) > PATH_BYTES or not _REFERENCE.match(value):
        return None
    address, hash_, fragment = value.partition("#")
    place, mark, query = address.partition("?")
    if place.startswith("//") or ":" in place.partition("/")[0]:
        return None
    base = target.path.partition("?")[0]
    path = _resolved(base, place)
    if path is None:
        return None
    if not place and not mark:
        query = target.path.partition("?")[2]
        mark = "?" if query else ""
    written = f"{target.base}{path}"
    if len(written) + len(query) >= PATH_BYTES:
        return None
    try:
        engine_target(written)
    except BadRequest:
        return None
    return f"{written}{mark}{query}{hash_}{fragment}"


def _resolved(base: str, place: str) -> str | None:
    """RFC 3986 §5.2.3 and §5.2.4, but None for what climbs above the root."""
    if not place:
        return base
    whole = place if place.startswith("/") else base.rpartition("/")[0] + "/" + place
    kept: list[str] = []
    segments = whole.split("/")[1:]
    for segment in segments:
        if segment == "..":
            if not kept:
                return None
            kept.pop()
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept)


def rewritten_headers(status: int, headers: Headers, target: EngineTarget | None) -> Headers:
    """``headers`` of an answer to ``target``, with the addresses in them as its client reaches them; those
    that lie elsewhere are left out. ``target`` None: all do. The same object when there are none.

    Raises EngineError, ``engine_redirect``, for a redirect that leads elsewhere.
    """
    check_redirect(status, target)
    if not any(name in REWRITTEN for name, _ in headers):
        return headers
    kept: list[tuple[str, str]] = []
    for name, value in headers:
        read = _READ.get(name)
        found = value if read is None else (read(value, target) if target is not None else None)
        if found is not None:
            kept.append((name, found))
        elif name == "location" and _redirects(status):
            raise _redirect("the engine sends on to another place")
    return tuple(kept)


def check_redirect(status: int, target: EngineTarget | None) -> None:
    """Raises EngineError, ``engine_redirect``, for a redirect in an answer to ``target`` where none can lead
    back there."""
    if _redirects(status) and (target is None or not target.base):
        raise _redirect("the engine answers requests on this path with a redirect")


def _redirects(status: int) -> bool:
    return 300 <= status < 400 and status != NOT_MODIFIED


def _redirect(why: str) -> EngineError:
    return EngineError(
        f"This answer is not passed on: {why}, and a client would take its key and its request along. "
        "Only redirects to the engine's own paths are followed, under /engines/{model}/….",
        code="engine_redirect",
    )


def _refresh(value: str, target: EngineTarget) -> str | None:
    found = _REFRESH.match(value)
    if found is None:
        return None
    if not (found["rest"] or "").strip():
        return found["after"]
    url = _URL.match(found["rest"])
    address = None if url is None else client_reference(url["url"], target)
    return None if address is None else f"{found['after']}; url={address}"


def _links(value: str, target: EngineTarget) -> str | None:
    """Those links that lie on the engine; None when there is none."""
    kept: list[str] = []
    for part in value.split("<")[1 : LINKS + 1]:
        address, closed, parameters = part.partition(">")
        parameters = parameters.rstrip(" \t").removesuffix(",")
        if not closed or not _PARAMETERS.match(parameters) or "anchor" in parameters.lower():
            continue
        found = client_reference(address, target)
        if found is not None:
            kept.append(f"<{found}>{parameters}")
    return ", ".join(kept) or None


_READ = {
    **dict.fromkeys(ADDRESSES, client_reference),
    **dict.fromkeys(_LEFT_OUT, lambda value, target: None),
    "refresh": _refresh,
    "link": _links,
}

REWRITTEN = frozenset(_READ)
"""The fields that lead elsewhere, or may."""
