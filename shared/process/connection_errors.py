"""Explains why a gateway could not be connected to, for the person who wrote its URL.

Pure: it knows the exceptions of sockets and of TLS, and uses neither."""

import socket
import ssl
from contextlib import suppress
from http.client import BadStatusLine, RemoteDisconnected
from urllib.parse import urlsplit

TEXT_CHARS = 200
"""How many characters of a peer's answer are repeated at most."""

TRUST_OPTION = "--ca-file"
"""With this agents and commands are given certificates to trust."""


def explain_connection_error(
    url: str, error: Exception, proxy: str | None = None, trust_option: str = TRUST_OPTION
) -> str:
    """What ``error``, which came before any HTTP, means and what to write instead, as far as can be told.
    ``url`` is ``ws://`` or ``wss://``. ``proxy`` is the URL of the proxy; its password is not repeated.
    ``trust_option`` is what names certificates to trust."""
    host = urlsplit(url).hostname or ""
    reached = host if proxy is None else f"the proxy {host_of(proxy)}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate_words(error, host, trust_option)
    if isinstance(error, ssl.SSLError):
        return _tls_words(error, url)
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"the name of {reached} cannot be resolved ({_text(error)}): is it spelt right?"
    if isinstance(error, ConnectionRefusedError):
        return f"nobody listens there ({reached} refuses the connection): does it run, on this port?"
    if isinstance(error, ConnectionResetError) and url.startswith("wss:"):
        return (
            "the connection was closed before TLS was agreed on. Either the gateway is stopping just now, or "
            f"this port speaks no TLS: then {_plain_instead(url)}"
        )
    return _text(error)


def explain_http_error(url: str, error: Exception, proxy: str | None = None) -> str:
    """What ``error`` means for whoever asked the gateway by HTTP at ``url``, ``http://`` or ``https://``: an
    OSError from before the answer, or an HTTPException of :mod:`http.client`. Without the URL."""
    tunnel_url = "ws" + url.removeprefix("http")
    if isinstance(error, ConnectionResetError) and url.startswith("http:"):
        return (
            "the connection was closed before an answer came. Either the gateway was stopped meanwhile, or "
            f"{no_http(tunnel_url)}"
        )
    if isinstance(error, BadStatusLine):
        return str(error) if isinstance(error, RemoteDisconnected) else no_http(tunnel_url)
    return explain_connection_error(tunnel_url, error, proxy)


def gateway_of(url: str) -> str:
    """The gateway's URL as people write it."""
    parts = urlsplit(url)
    scheme = "https" if parts.scheme == "wss" else "http"
    return f"{scheme}://{parts.netloc}{parts.path.removesuffix('/tunnel')}"


def no_http(url: str) -> str:
    """For an answer at ``url``, ``ws://`` or ``wss://``, that is no HTTP."""
    if url.startswith("ws:"):
        instead = gateway_of(url).replace("http:", "https:", 1)
        return f"what answers there is no plain HTTP: if the port speaks TLS, write {instead}"
    return "what answers there is no HTTP: is it the gateway's port?"


def host_of(proxy: str | None) -> str:
    """The host of a proxy's URL."""
    with suppress(ValueError):
        return urlsplit(proxy or "").hostname or ""
    return ""


def _certificate_words(error: ssl.SSLCertVerificationError, host: str, trust_option: str) -> str:
    said = (error.verify_message or _text(error)).rstrip(".")
    if "mismatch" in said or "not valid for" in said:
        return f"its certificate is for another name than {host} ({said}): use the name that it is for"
    if "expired" in said or "not yet valid" in said:
        return f"its certificate is out of date by this host's clock ({said}): renew it, or set the clock"
    return (
        f"its certificate is not trusted here ({said}): give the authority's certificate, or its own if it "
        f"is self-signed, with {trust_option}"
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


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)[:TEXT_CHARS] or type(error).__name__
