"""``trunkline bench``: load for any OpenAI endpoint, and how it bore it.

`plan` is what was asked for, `prompts` makes the requests, `connection` sends one and reads its answer
through `answer`, `driver` does all of it until the end, `tally` counts, `report` tells. A token costs a count
of bytes and a step of a histogram: no task and no JSON.
"""

from gateway.tools.bench.command import register

__all__ = ["register"]
