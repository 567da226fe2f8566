"""The agent measures the GPU-seconds of each request, from all gateways, and says them in END (PROTOCOL
§4.4)."""

from collections.abc import Collection

import pytest

from agent.capacity.engine_registry import EngineRegistry
from shared.link.session import GatewaySession
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import DeploymentState, Trailers
from shared.protocol.peers import CAPABILITIES, DEMAND, GPU_SECONDS
from tests.agent.support.canned import until
from tests.agent.support.joined import PlayedBackend
from tests.agent.support.requests_in import TOKEN, agent_with, played
from tests.support.clock import ManualClock


@pytest.mark.parametrize(("agreed", "gpu_s"), [(True, 2.0), (False, None)])
async def test_its_end_says_what_a_request_used_where_that_is_agreed_on(
    agreed: bool, gpu_s: float | None
) -> None:
    backend = played()
    async with agent_with(backend, tells_gpu_s=agreed) as here:
        _, answer = here.ask()
        await backend.begun.wait()
        here.clock.advance(2.0)
        backend.response.pieces.put_nowait(TOKEN)
        backend.response.pieces.put_nowait(None)
        trailers = await answer.until("end")
    assert trailers == Trailers(None, 0.0, 2.0, 2.0, gpu_s)


async def test_requests_of_other_gateways_run_beside_it() -> None:
    """Of its 3 s it ran alone in the first, beside one other in the second and third."""
    backend = played()
    async with agent_with(backend, tells_gpu_s=True) as here:
        _, answer = here.ask()
        await backend.begun.wait()
        here.clock.advance(1.0)
        seat = here.registry.enter("another gateway's session", "e/m")
        here.clock.advance(2.0)
        backend.response.pieces.put_nowait(None)
        trailers = await answer.until("end")
        assert trailers.gpu_s == pytest.approx(1.0 + 2.0 / 2)
        here.clock.advance(4.0)
        assert here.registry.leave(seat, failed=False) == pytest.approx(2.0 / 2 + 4.0)


async def test_a_cancelled_request_counts_as_long_as_the_engine_has_it() -> None:
    backend = played()
    async with agent_with(backend, tells_gpu_s=True) as here:
        stream, _ = here.ask()
        await backend.begun.wait()
        here.clock.advance(1.0)
        seat = here.registry.enter("another gateway's session", "e/m")
        here.clock.advance(2.0)
        stream.reset(ErrorCode.CANCELLED)
        await until(lambda: here.registry.running == 1)
        here.clock.advance(3.0)
        assert here.registry.leave(seat, failed=False) == pytest.approx(2.0 / 2 + 3.0)


def test_models_of_one_engine_share_its_time() -> None:
    clock = ManualClock()
    registry = EngineRegistry(clock)
    states = [DeploymentState(id=f"e/{model}", model=model, slots=2) for model in "mn"]
    registry.add(PlayedBackend(*states))
    one, other = registry.enter("s", "e/m"), registry.enter("s", "e/n")
    clock.advance(2.0)
    used_s = [registry.leave(seat, failed=False) for seat in (one, other)]
    assert used_s == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(("capabilities", "tells"), [(CAPABILITIES, True), ((DEMAND,), False), ((), False)])
def test_an_older_gateway_is_not_told(capabilities: tuple[str, ...], tells: bool) -> None:
    told: list[bool] = []

    class Runner:
        def open(self, session: object, stream: object, *, agreed: Collection[str]) -> None:
            told.append(GPU_SECONDS in agreed)

    class Publisher:
        def attach(self, endpoint: object, session: object) -> None: ...

    session = GatewaySession(Runner(), Publisher(), lambda command: None, lambda renewal: None)  # type: ignore[arg-type,return-value]
    session.begin(object(), None, capabilities)  # type: ignore[arg-type]
    session.on_open(object())  # type: ignore[arg-type]
    assert told == [tells]
