"""Explains to people why a gateway could not be dialled. Pure."""

from http import HTTPStatus

from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidMessage,
    InvalidProxyMessage,
    InvalidProxyStatus,
    InvalidStatus,
    InvalidURI,
)
from websockets.http11 import Response

from shared.process.connection_errors import (
    TEXT_CHARS,
    TRUST_OPTION,
    explain_connection_error,
    gateway_of,
    host_of,
    no_http,
)

_NO_WAY = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})
_WANTS_MORE = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


def explain_dial_error(
    url: str, error: Exception, proxy: str | None = None, trust_option: str = TRUST_OPTION
) -> str:
    """Says what an error of :func:`websockets.asyncio.client.connect` for ``url`` means, and what to write
    instead where that is known. ``proxy`` is the URL of the proxy that was used; its password is not
    repeated. ``trust_option`` is what names certificates to trust."""
    gateway = gateway_of(url)
    if isinstance(error, InvalidProxyStatus | InvalidProxyMessage):
        return f"{gateway}: {_proxy_words(error, proxy)}"
    if isinstance(error, InvalidStatus):
        return f"{gateway}: {_status_words(gateway, error.response)}"
    if isinstance(error, InvalidURI):
        return f"{gateway} sends on to {error.uri[:TEXT_CHARS]}: give the URL that it leads to"
    if isinstance(error, InvalidMessage):
        return f"{gateway}: {no_http(url)}"
    if isinstance(error, ConnectionClosed):
        return (
            f"{gateway}: the connection was closed before anything could be asked. Either the gateway is "
            "stopping just now, or a proxy in front closes it"
        )
    if isinstance(error, InvalidHandshake):
        return f"{gateway}: what answers there is no gateway, or a proxy in front spoils WebSockets: {error}"
    return f"{gateway}: {explain_connection_error(url, error, proxy, trust_option)}"


def _status_words(gateway: str, response: Response) -> str:
    status = response.status_code
    said = _said(response)
    if status == HTTPStatus.NOT_FOUND:
        return (
            f"no gateway answers there: {gateway}/tunnel is not found (404); write the URL without any path, "
            f"or have the proxy in front pass /tunnel on{said}"
        )
    if status in _NO_WAY:
        return f"answers {status} to an agent: it takes none now, or a proxy in front cannot reach it{said}"
    if status in _WANTS_MORE:
        return f"something in front of the gateway lets nobody through to /tunnel (it answers {status}){said}"
    if status == HTTPStatus.MISDIRECTED_REQUEST:
        return f"answers 421: what is there serves another name{said}"
    return (
        f"answers {status} in place of opening a WebSocket: a proxy in front does not pass upgrades on "
        f"/tunnel, or it is no gateway{said}"
    )


def _said(response: Response) -> str:
    """The text that came with a refusal, where it is text."""
    if not response.headers.get("content-type", "text/plain").startswith("text/plain"):
        return ""
    text = bytes(response.body or b"").decode("utf-8", "replace").strip()
    first = text.splitlines()[0][:TEXT_CHARS] if text else ""
    return f" ({first})" if first and first.isprintable() else ""


def _proxy_words(error: InvalidProxyStatus | InvalidProxyMessage, proxy: str | None) -> str:
    name = host_of(proxy)
    if isinstance(error, InvalidProxyMessage):
        return f"{name}, which is set as the proxy, does not answer as one"
    status = error.response.status_code
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        return f"the proxy {name} wants a user and a password (407): write http://USER:PASSWORD@{name}:PORT"
    return f"the proxy {name} does not connect to it: it answers {status}"
