"""Directives that mend what a proxy before a gateway does to its requests, by check and by proxy."""

from collections.abc import Mapping

PROXIES = ("nginx", "HAProxy", "Envoy", "Cloudflare", "Traefik", "Caddy")

REMEDIES: Mapping[str, Mapping[str, str]] = {
    "websocket-upgrade": {
        "nginx": (
            "proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; "
            "proxy_set_header Connection $trunkline_connection; with the map of $http_upgrade to it"
        ),
        "HAProxy": (
            "mode http, timeout tunnel 1h, and no http-request del-header Upgrade or Connection; bind with "
            "alpn h2,http/1.1 or with http/1.1 alone"
        ),
        "Envoy": "upgrade_configs: [{upgrade_type: websocket}] in the http_connection_manager",
        "Cloudflare": "Network > WebSockets: On",
        "Traefik": "no headers middleware that sets or empties Upgrade or Connection on this router",
        "Caddy": "reverse_proxy without header_up -Upgrade and header_up -Connection",
    },
    "sse-buffering": {
        "nginx": (
            "proxy_http_version 1.1; proxy_buffering off; gzip off; and no X-Accel-Buffering in "
            "proxy_ignore_headers"
        ),
        "HAProxy": "no option http-buffer-request, and no compression for text/event-stream",
        "Envoy": "remove envoy.filters.http.buffer and the compressor for this route",
        "Cloudflare": "a Cache Rule with Bypass cache for this host, and Response Buffering off",
        "Traefik": "no buffering and no compress middleware; responseForwarding.flushInterval: 1ms",
        "Caddy": "flush_interval -1 in reverse_proxy, and no encode for text/event-stream",
    },
    "idle-cut": {
        "nginx": "proxy_read_timeout 3700s; proxy_send_timeout 3700s;",
        "HAProxy": "timeout client 3700s, timeout server 3700s, timeout tunnel 1h",
        "Envoy": (
            "timeout: 0s and idle_timeout: 3700s in the route, stream_idle_timeout: 3700s in the manager"
        ),
        "Cloudflare": (
            "a longer Proxy Read Timeout (Enterprise), or a record that is DNS only; else ask for "
            "streams, which "
            "get a comment every http.comment_s seconds"
        ),
        "Traefik": (
            "respondingTimeouts.readTimeout: 0s and idleTimeout: 3700s of the entry point, "
            "forwardingTimeouts.responseHeaderTimeout: 0s of the serversTransport"
        ),
        "Caddy": "transport http { read_timeout 0 response_header_timeout 0 } in reverse_proxy",
    },
    "body-limit": {
        "nginx": "client_max_body_size 520m; proxy_request_buffering off;",
        "HAProxy": "no http-request deny by req.body_size or req.hdr(content-length), or a higher one",
        "Envoy": "a higher max_request_bytes of envoy.filters.http.buffer, or no such filter for this route",
        "Cloudflare": "the plan's limit (100 MB on Free and Pro); a record that is DNS only has none",
        "Traefik": "a higher maxRequestBodyBytes of the buffering middleware, or none on this router",
        "Caddy": "request_body { max_size 545MB }",
    },
}
"""Check → proxy → what its configuration is to say."""


def proxy_of(headers: Mapping[str, str]) -> str | None:
    """Which proxy made an answer with these header fields (lower-case names), as far as it tells."""
    server, via = headers.get("server", "").lower(), headers.get("via", "").lower()
    if "cf-ray" in headers or server.startswith("cloudflare"):
        return "Cloudflare"
    if server.startswith("nginx") or server.startswith("openresty"):
        return "nginx"
    if server.startswith("envoy") or "x-envoy-upstream-service-time" in headers:
        return "Envoy"
    if "caddy" in server or "caddy" in via:
        return "Caddy"
    return None


def remedy_for(check: str, proxy: str | None) -> str:
    """What to write into the configuration of ``proxy``; into that of each, where it is not known which."""
    directives = REMEDIES[check]
    if proxy is not None:
        return f"In {proxy}: {directives[proxy]}"
    return "In the proxy's configuration:\n" + "\n".join(f"{name}: {directives[name]}" for name in PROXIES)
