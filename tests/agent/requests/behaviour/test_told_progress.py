"""What backends report of progress, and who hears of it (PROTOCOL §4.12)."""

from shared.protocol.progress import Progress
from tests.agent.support.requests_in import agent_with, played


async def test_what_a_backend_reports_reaches_the_gateway_before_the_answer() -> None:
    backend = played()
    async with agent_with(backend) as here:
        _, answer = here.ask()
        await backend.begun.wait()
        (run,) = here.runner._runs
        run.on_progress(Progress(0.5, "half"))
        assert await answer.until("progress") == Progress(0.5, "half")
        backend.response.pieces.put_nowait(None)
        await answer.until("end")


async def test_a_gateway_that_did_not_agree_is_told_nothing() -> None:
    backend = played()
    async with agent_with(backend, tells_progress=False) as here:
        _, answer = here.ask()
        await backend.begun.wait()
        (run,) = here.runner._runs
        run.on_progress(Progress(0.5))
        backend.response.pieces.put_nowait(None)
        await answer.until("end")
    assert "progress" not in answer.names()
