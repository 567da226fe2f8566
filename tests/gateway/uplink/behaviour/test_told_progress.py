"""A gateway's parent hears how far its requests are, if it agreed on that."""

import pytest

from shared.protocol.peers import PROGRESS
from shared.protocol.progress import Preview, Progress
from tests.gateway.uplink.child import Child

HALF = Progress(0.5, "step 1 of 2", Preview("image/png", b"picture"))


@pytest.mark.parametrize(("agreed", "heard"), [((PROGRESS,), [HALF]), ((), [])])
async def test_what_an_agent_says_goes_on_to_a_parent_that_knows_it(
    agreed: tuple[str, ...], heard: list[Progress]
) -> None:
    child = Child(1, agreed=agreed)
    stream = child.ask()
    (at_agent,) = child.agents[0].open_streams
    for said in (HALF, Progress(0.75)):
        assert at_agent.stream.send_progress(said)
        child.fleet.settle()
    await child.answer(child.agents[0])
    assert stream.ended
    assert stream.progress == heard, "what waits when the answer ends is not said"
