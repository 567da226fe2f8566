"""``trunkline bench``: puts load on any OpenAI endpoint and measures it.

`plan` holds the options, `prompts` makes the requests, `connection` sends one and reads its answer
through `answer`, `driver` runs the whole load, `tally` counts, `report` formats the figures. A token costs a
count of bytes and a step of a histogram: no task and no JSON.
"""

from gateway.tools.bench.command import register

__all__ = ["register"]
