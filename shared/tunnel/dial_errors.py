"""Why a gateway could not be dialled, in words for whoever wrote its URL. Pure."""

import socket
import ssl
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import urlsplit

from websockets.exceptions import (
    InvalidHandshake,
    InvalidMessage,
    InvalidProxyMessage,
    InvalidProxyStatus,
    InvalidStatus,
    InvalidURI,
)
from websockets.http11 import Response

TEXT_CHARS = 200
"""Of what somebody else answers, at most so much is repeated."""

_NO_WAY = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})
_WANTS_MORE = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


def explain_dial_error(url: str, error: Exception, proxy: str | None = None) -> str:
    """What ``error``, which :func:`websockets.asyncio.client.connect` raised for ``url``, means and what to
    write instead, as far as that can be told. ``proxy`` is the URL of the one that was gone through; no
    password in it is repeated."""
    gateway, host = gateway_of(url), urlsplit(url).hostname or ""
    if isinstance(error, InvalidProxyStatus | InvalidProxyMessage):
        return f"{gateway}: {_proxy_words(error, proxy)}"
    if isinstance(error, InvalidStatus):
        return f"{gateway}: {_status_words(gateway, error.response)}"
    if isinstance(error, InvalidURI):
        return f"{gateway} sends on to {error.uri[:TEXT_CHARS]}: give the URL that it leads to"
    if isinstance(error, InvalidMessage):
        return f"{gateway}: {_no_http(url)}"
    if isinstance(error, InvalidHandshake):
        return f"{gateway}: what answers there is no gateway, or a proxy in front spoils WebSockets: {error}"
    reached = host if proxy is None else f"the proxy {_host_of(proxy)}"
    return f"{gateway}: {_connection_words(error, url, host, reached)}"


def _connection_words(error: Exception, url: str, host: str, reached: str) -> str:
    """For what went wrong before any HTTP; ``reached`` is whom the connection was made to."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate_words(error, host)
    if isinstance(error, ssl.SSLError):
        return _tls_words(error, url)
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"the name of {reached} cannot be resolved ({_text(error)}): is it spelt right?"
    if isinstance(error, ConnectionRefusedError):
        return f"nobody listens there ({reached} refuses the connection): does it run, on this port?"
    if isinstance(error, ConnectionResetError) and url.startswith("wss:"):
        return f"the connection was closed before TLS was agreed on: {_plain_instead(url)}"
    return _text(error)


def gateway_of(url: str) -> str:
    """The gateway's URL as people write it."""
    parts = urlsplit(url)
    scheme = "https" if parts.scheme == "wss" else "http"
    return f"{scheme}://{parts.netloc}{parts.path.removesuffix('/tunnel')}"


def _host_of(proxy: str | None) -> str:
    with suppress(ValueError):
        return urlsplit(proxy or "").hostname or ""
    return ""


def _certificate_words(error: ssl.SSLCertVerificationError, host: str) -> str:
    said = (error.verify_message or _text(error)).rstrip(".")
    if "mismatch" in said or "not valid for" in said:
        return f"its certificate is for another name than {host} ({said}): use the name that it is for"
    if "expired" in said or "not yet valid" in said:
        return f"its certificate is out of date by this host's clock ({said}): renew it, or set the clock"
    return (
        f"its certificate is not trusted here ({said}): give the authority's certificate, or its own if it "
        "is self-signed, with --ca-file"
    )


def _tls_words(error: ssl.SSLError, url: str) -> str:
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"):
        return f"this port speaks no TLS: {_plain_instead(url)}"
    return f"TLS cannot be agreed on: {error.reason or _text(error)}"


def _plain_instead(url: str) -> str:
    return (
        f"write {gateway_of(url).replace('https:', 'http:', 1)} if the gateway is on this host and has no "
        "--tls-cert, else the port at which TLS is"
    )


def _no_http(url: str) -> str:
    if url.startswith("ws:"):
        instead = gateway_of(url).replace("http:", "https:", 1)
        return f"what answers there is no plain HTTP: if the port speaks TLS, write {instead}"
    return "what answers there is no HTTP: is it the gateway's port?"


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
    name = _host_of(proxy)
    if isinstance(error, InvalidProxyMessage):
        return f"{name}, which is set as the proxy, does not answer as one"
    status = error.response.status_code
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        return f"the proxy {name} wants a user and a password (407): write http://USER:PASSWORD@{name}:PORT"
    return f"the proxy {name} does not connect to it: it answers {status}"


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
