"""Connections: TLS, bounds, proxies, and the HTTP protocol class that uvicorn runs."""
