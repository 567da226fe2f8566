"""``trunkline doctor``: what is wrong on this host and on the way to a gateway, and what to do about it.

`way` takes the hops of a connection and times them, `connection`, `keyed` and `probes` are the checks of it,
`gateway_host` those of a gateway's host; an agent registers its own. `examination` chooses
some, `runner` runs them side by side, `report` shows what came of it, `remedies` has what to write into
proxies' configurations.
"""

from gateway.tools.doctor.command import register

__all__ = ["register"]
