"""``trunkline simulate``: the gateway's scheduling policies on simulated GPUs, under a virtual clock.

`inputs` are the requests that come, from `traces` or a `mix`; `devices` and `fleet` say what serves them. An
`engine` batches as real ones do, many steps at once, within the memory of `prefix_cache`. `world` brings them
together with a gateway whose `line` waits for slots and whose `policies` choose. `tally` counts; `simulation`
is one run from its parts, and a search over many. `report` and `chart` tell.
"""

from gateway.tools.simulate.command import register

__all__ = ["register"]
