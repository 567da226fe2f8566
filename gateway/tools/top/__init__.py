"""``trunkline top``: the fleet, the queues and requests of a running gateway, live in a terminal.

``source`` reads the stream of live events in a thread, ``live_fleet`` makes one state of it with rates and
percentiles, ``views`` are the tables, ``columns`` sorts, filters and fits them. ``app`` shows them with
textual, in ``table`` and ``dialogs``; ``plain`` prints them once, and needs no textual.
"""

from gateway.tools.top.command import register

__all__ = ["register"]
