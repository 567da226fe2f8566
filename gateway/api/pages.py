"""What the gateway says of itself: where one is (``/``), its version, and its paths for people to read."""

import asyncio
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

import orjson

from gateway.api.errors import HeaderList
from gateway.api.exchange.exchange import HttpExchange
from gateway.api.openai.handlers import JSON, Respond
from gateway.domain.surface import ENDPOINTS
from gateway.pipeline.pipeline import KeyAuthenticator

HTML = b"text/html; charset=utf-8"

PAGE_HEADERS: HeaderList = [
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
]
"""The pages load nothing, from here or elsewhere, and run nothing."""

_WHERE_TO_GO = {
    "base_url": "/v1",
    "models": "/v1/models",
    "dashboard": "/ui/",
    "documentation": "/docs",
    "openapi": "/openapi.json",
    "health": "/health",
}

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;"
    "color:#1c1c1c;background:#fff}code,pre{font:14px ui-monospace,monospace;background:#f3f3f3}"
    "pre{padding:.8rem;overflow-x:auto}table{border-collapse:collapse;width:100%}"
    "td,th{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #ddd;vertical-align:top}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}code,pre{background:#262626}"
    "td,th{border-color:#3a3a3a}a{color:#8ab4f8}}"
)


def root_page() -> Respond:
    """``GET /``: what this is and where to go, as a page for browsers and as JSON for others. Open to
    everybody."""
    what = "Trunkline: one endpoint in front of every GPU you own."
    as_json = orjson.dumps({"object": "gateway", "name": "trunkline", "about": what, **_WHERE_TO_GO})
    links = "".join(
        f'<tr><td>{name.replace("_", " ")}</td><td><a href="{path}"><code>{path}</code></a></td></tr>'
        for name, path in _WHERE_TO_GO.items()
        if name != "base_url"
    )
    example = (
        "from openai import OpenAI\n\n"
        'client = OpenAI(base_url="https://THIS-HOST/v1", api_key="sk-tl-…")\n'
        "for model in client.models.list():\n    print(model.id)"
    )
    as_html = _page(
        "Trunkline",
        f"<p>{escape(what)} Programs that speak OpenAI's, Anthropic's or Ollama's API are pointed here "
        f"with a key of this gateway.</p><pre>{escape(example)}</pre><table>{links}</table>",
    )

    async def respond(exchange: HttpExchange, names: Mapping[str, str]) -> None:
        if wants_html(exchange):
            await exchange.reply.whole(200, HTML, as_html, [*PAGE_HEADERS, (b"vary", b"accept")])
        else:
            await exchange.reply.whole(200, JSON, as_json, [(b"vary", b"accept")])

    return respond


def version_page(keys: KeyAuthenticator, version: str) -> Respond:
    """``GET /version``: which version runs here, for holders of a key. To others it would only tell which
    faults to look for."""
    body = orjson.dumps({"name": "trunkline", "version": version})

    async def respond(exchange: HttpExchange, names: Mapping[str, str]) -> None:
        await exchange.identify(keys)
        await exchange.reply.whole(200, JSON, body)

    return respond


def page_made_once(
    content_type: bytes, make: Callable[[], bytes], headers: HeaderList | None = None
) -> Respond:
    """A page that is open to everybody and made at its first request, in a thread: neither a start nor the
    event loop waits for it."""
    body: bytes | None = None

    async def respond(exchange: HttpExchange, names: Mapping[str, str]) -> None:
        nonlocal body
        if body is None:
            body = await asyncio.to_thread(make)
        await exchange.reply.whole(200, content_type, body, headers)

    return respond


def wants_html(exchange: HttpExchange) -> bool:
    """Whether a browser asks, which names HTML among what it takes; ``*/*`` of other programs does not."""
    return b"text/html" in exchange.fields.get(b"accept", b"")


def docs_page(document: Mapping[str, Any]) -> bytes:
    """The page for an OpenAPI document: each path and method with what it does and the scope it needs."""
    rows = []
    routes = [
        (each.path + "{model}" if each.names_model else each.path, each.fixed is None, each.route)
        for each in ENDPOINTS
    ]
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if not isinstance(operation, dict):
                continue  # parameters
            route = next(
                (r for p, all_below, r in routes if p == path or (all_below and path.startswith(p))), ""
            )
            what, _, role = operation.get("summary", "").partition("; takes the role ")
            if operation.get("security") == []:
                key = "none"
            elif route or role:
                key = f"route <code>{route}</code>" if route else f"role <code>{escape(role)}</code>"
            else:
                key = "any"
            rows.append(
                f"<tr><td><code>{escape(method.upper())}</code></td><td><code>{escape(path)}</code></td>"
                f"<td>{escape(what)}</td><td>{key}</td></tr>"
            )
    about = escape(document["info"]["description"])
    return _page(
        "Paths of this gateway",
        f'<p>{about} The same for programs: <a href="/openapi.json"><code>/openapi.json</code></a>.</p>'
        "<p>Send a key as <code>Authorization: Bearer …</code> or <code>x-api-key: …</code>. A key may be "
        "limited to some routes, models and tiers, and may have a role; the last column says which route or "
        "role it must have, or that any key will do.</p>"
        f"<table><tr><th>Method</th><th>Path</th><th>What</th><th>Key</th></tr>{''.join(rows)}</table>",
    )


def _page(title: str, body: str) -> bytes:
    head = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{_STYLE}</style></head>'
    )
    return f"{head}<body><h1>{escape(title)}</h1>{body}</body></html>".encode()
