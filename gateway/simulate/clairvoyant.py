"""A policy that knows what nobody can: true output lengths, and everything about every engine."""

import math
from collections.abc import Sequence

from gateway.scheduling.base import DeploymentView, Waiting
from gateway.simulate.engine import Engine
from gateway.simulate.rivals import OneByOne
from gateway.simulate.site import Site


class Clairvoyant(OneByOne):
    """Of all deployments the one where the request and those who run there lose the least time together,
    computed from the engine's true state and the true cost of everything.

    No proof of a bound: it decides one request after the other. It is what a perfect estimate would give.
    """

    name = "clairvoyant"

    def __init__(self, sites: Sequence[Site]) -> None:
        super().__init__(sites)
        self._sent: dict[str, list[tuple[float, int, int]]] = {}
        """Of what is on its way to each: when it arrives, its uncached and its context tokens."""

    def choose(self, item: Waiting, open_now: Sequence[DeploymentView], now: float) -> DeploymentView:
        return min(open_now, key=lambda view: (self._cost_s(item, view, now), view.in_flight))

    def placed(self, item: Waiting, key: str, now: float) -> None:
        site = self.sites[key]
        uncached = item.input_tokens - _cached(item, site.engine)
        self._sent.setdefault(key, []).append((now + site.way_s, uncached, item.input_tokens))

    def gone(self, key: str, now: float) -> None:
        self._sent.pop(key, None)

    def _cost_s(self, item: Waiting, view: DeploymentView, now: float) -> float:
        site = self.sites[view.key]
        engine, pace = site.engine, site.engine.pace
        sent = self._sent.get(view.key)
        if sent:
            sent[:] = [each for each in sent if each[0] > now]
        company = len(engine.running) + len(engine.waiting) + len(sent or ()) + self.given.get(view.key, 0)
        ahead = engine.backlog_by(now) + sum(each[1] for each in sent or ())
        cached = _cached(item, engine)
        uncached = item.input_tokens - cached
        step_s = (
            pace.step_s + max(pace.weights_s, pace.token_s * (company + 1)) + pace.context_s * engine.context
        )
        steps = math.ceil((uncached + ahead) / pace.chunk_tokens)
        read_s = max(pace.weights_s, uncached * pace.token_s) + pace.pair_s * uncached * (
            cached + uncached / 2
        )
        first_s = view.rtt_s + ahead * pace.token_s + read_s + steps * (step_s - pace.weights_s)
        context = item.input_tokens + item.output_tokens / 2
        write_s = item.output_tokens * (step_s + pace.context_s * context)
        harm_s = company * (read_s + item.output_tokens * pace.context_s * context)
        missing = item.input_tokens + item.output_tokens - cached - engine.memory.free
        crowded_s = 0.0 if missing <= 0 or not company else missing / company * step_s
        return first_s + write_s + harm_s + crowded_s


def _cached(item: Waiting, engine: Engine) -> int:
    memory = engine.memory
    return min(memory.known(item.prefix) * memory.block_tokens, item.input_tokens - 1)
