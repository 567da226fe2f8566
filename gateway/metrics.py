"""What the gateway counts, as Prometheus reads it (SURFACE, ``/metrics``).

Labels are bounded: a model name becomes a label only when an authenticated agent serves it, others count under
``other``; nothing a client writes reaches a label. Nothing here runs per token.
"""


class Metrics:
    """All metrics of one gateway, in a registry of their own."""

    CONTENT_TYPE: str
    """Of what :meth:`render` returns."""

    def render(self) -> bytes:
        """The exposition text for ``GET /metrics``. Gauges are read from their owners now."""
        raise NotImplementedError

    def request_finished(self, route: str, model: str, status: int, duration_s: float) -> None:
        """Count one client request, of whatever outcome. ``route`` is a deployment route or the HTTP surface's
        own name (``models``, ``other``); unknown routes and models count under ``other``."""
        raise NotImplementedError
