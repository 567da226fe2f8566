"""What state machines over a fleet have in common: what holds of slots, and what is left at last."""

from collections.abc import Callable, Coroutine
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant

from gateway.dispatch.dispatcher import DispatchSettings, QueueSettings
from gateway.fleet.deployment import Deployment
from tests.gateway.fleet.fleet import Fleet

SETTINGS = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
picks = st.integers(0, 10**6)
"""For :func:`pick_of`."""


class FleetMachine(RuleBasedStateMachine):
    """Drives ``fleet``."""

    def __init__(self, queue: QueueSettings, settings: DispatchSettings) -> None:
        super().__init__()
        self.fleet = Fleet(queue=queue, settings=settings)

    def deployments(self) -> list[Deployment]:
        return [each for session in self.fleet.registry.sessions for each in session.deployments.values()]

    @invariant()
    def slots_in_use_are_streams_that_are_open(self) -> None:
        for session in self.fleet.registry.sessions:
            handlers = [stream.handler for stream in session.endpoint.streams.values()]
            for each in session.deployments.values():
                mine = sum(getattr(handler, "deployment", None) is each for handler in handlers)
                assert each.in_flight == mine
                assert (each.outstanding == 0) == (mine == 0)

    def assert_nothing_left(self) -> None:
        """Nothing is open, held or waiting, and no timer is set but those that look again."""
        self.fleet.assert_quiet()
        dispatcher = self.fleet.dispatcher
        kept = dispatcher._assigner.timers_set + len(dispatcher.health._looks)
        assert self.fleet.loop.pending == kept


def pick_of(items: list[Any], pick: int) -> Any:
    return items[pick % len(items)]


def now_or_never(function: Callable[[], Coroutine[Any, Any, list[bytes]]]) -> list[bytes] | None:
    """What a coroutine returns without waiting; None when it would have to wait."""
    coroutine = function()
    try:
        coroutine.send(None)
    except StopIteration as stop:
        chunks: list[bytes] = stop.value
        return chunks
    except RuntimeError:  # it asked for the running loop, in order to wait
        return None
    finally:
        coroutine.close()
    return None
