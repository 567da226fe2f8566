"""The parent's processes are told of each other's requests, as by any agent."""

from shared.protocol.messages import RequestHead
from shared.protocol.other_requests import OthersTeller
from shared.protocol.others import Expected, Others
from tests.gateway.fleet.manual_timers import Loop
from tests.gateway.uplink.child import PARENT, Child, UpStream


class Process:
    """One of the parent's processes, as a session of the child."""

    def __init__(self, child: Child, loop: Loop) -> None:
        self.child = child
        self.told: list[Others] = []

        def send(others: Others) -> int:
            self.told.append(others)
            return 1

        self.teller = OthersTeller(loop, lambda after_s, call: loop.call_at(loop() + after_s, call), send)
        child.runner.others.add(self, self.teller)

    def ask(self) -> UpStream:
        group = self.child.capacity.state().deployments[0].id
        expected = Expected(input_tokens=7, output_tokens=3)
        head = RequestHead(
            group, "POST", "/v1/chat/completions", (), "m", "r1", via=(PARENT,), expected=expected
        )
        stream = UpStream(head)
        self.child.runner.open(self, stream)  # type: ignore[arg-type]
        stream.handler.on_data(b'{"model":"m","messages":[{"role":"user","content":"hi"}]}')
        stream.handler.on_end(None)
        self.child.fleet.settle()
        return stream


async def test_one_process_is_told_what_runs_for_the_other_and_when_it_ends() -> None:
    child = Child(2)
    loop = child.fleet.loop
    first, second = Process(child, loop), Process(child, loop)
    first.ask()
    child.fleet.advance(1.0)
    (told,) = second.told
    (request,) = told.began
    assert (request.deployment, request.read) == (child.capacity.state().deployments[0].id, False)
    assert (request.expected.input_tokens, request.expected.output_tokens) == (7, 3)
    await child.answer(child.agents[0])
    child.fleet.advance(1.0)
    assert second.told[-1].ended == (request.number,)
    assert first.told == []


async def test_one_that_comes_later_is_told_what_runs_then() -> None:
    child = Child(2)
    first = Process(child, child.fleet.loop)
    first.ask()
    second = Process(child, child.fleet.loop)
    child.fleet.advance(1.0)
    assert len(second.told[0].began) == 1


async def test_what_is_refused_never_began() -> None:
    child = Child(1)
    first, second = (Process(child, child.fleet.loop) for _ in range(2))
    own = child.fleet.submit()
    assert first.ask().reset_with is not None
    child.fleet.advance(1.0)
    assert second.told == []
    assert own.exchange is not None
    own.exchange.cancel()
