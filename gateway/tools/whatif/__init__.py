"""``trunkline whatif``: the last hour's requests, replayed through the simulator with another policy or
another fleet.

``facts`` are what is known of requests that are over, without content; ``log`` finds them in the audit log,
``recording`` holds them. ``fleet`` is the fleet of now, ``speeds`` says how fast a model is on a class of
device, and where that is from. ``changes`` makes two plans of one: as it is, and as asked. ``replay`` runs
one model of a plan in :mod:`gateway.tools.simulate`, ``outcomes`` are figures of what came of it, or of what
was measured. ``run`` puts the answer together; ``child`` does so for a gateway, ``command`` for a terminal.
"""

from gateway.tools.whatif.command import register

__all__ = ["register"]
