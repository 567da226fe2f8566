"""``trunkline simulate``: the gateway's scheduling policies on simulated GPUs, under a virtual clock.

`traffic` is what comes, from `traces` or a `mix`; `fleet`, `devices` and `own_devices` say what serves
it. An `engine` batches as real ones do, in `phase`s of many steps, within the memory of `prefix_cache`.
`world` brings them together with a gateway whose `line` waits for `slots` and whose `deciders` choose:
the scheduler itself, `rivals`, or the `clairvoyant`, by the names in `policies`. `tally` counts;
`simulation` is one run from its parts, `what_if` a search over many. `progress`, `report` and
`chart` tell.
"""

from gateway.simulate.command import register

__all__ = ["register"]
