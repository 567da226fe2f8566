"""A request's cycle: how its answer is framed and written, and how its body is taken."""

import asyncio
import socket
from types import SimpleNamespace

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from gateway.api.server.answer_cycle import AnswerCycle
from gateway.api.server.response_writers import WriteBatch, open_direct
from shared.speedups import receive_bodies

LENGTH = [(b"content-length", b"5")]


class Transport(asyncio.Transport):
    """Keeps each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.writes.append(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


class House:
    """One cycle on a transport."""

    def __init__(self, method: str = "POST", version: str = "1.1", *, expects: bool = False) -> None:
        self.transport = Transport()
        self.completed = 0
        self.cycle = AnswerCycle(
            {"type": "http", "method": method, "http_version": version},
            {},
            self.transport,
            FlowControl(self.transport),
            asyncio.get_running_loop(),
            [(b"date", b"now")],
            expects_continue=expects,
            keep_alive=version == "1.1",
            connection=self,
        )

    def on_response_complete(self) -> None:
        self.completed += 1

    def close_in_time(self) -> None:
        self.transport.close()


async def test_head_and_body_of_one_turn_are_one_write() -> None:
    house = House()
    await house.cycle.start(200, LENGTH)
    await house.cycle.write(b"hello", more=True)
    await house.cycle.write(b"", more=False)
    await asyncio.sleep(0)
    assert house.transport.writes == [b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-length: 5\r\n\r\nhello"]
    assert (house.completed, house.transport.closed) == (1, False)


async def test_a_head_whose_body_follows_goes_out_with_it_and_not_before() -> None:
    house = House()
    await house.cycle.start(200, LENGTH, body_follows=True)
    await asyncio.sleep(0)
    assert not house.transport.writes
    await house.cycle.write(b"hello", more=False)
    assert house.transport.writes == [b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-length: 5\r\n\r\nhello"]
    assert house.completed == 1


@pytest.mark.parametrize("method", ["POST", "HEAD"])
@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("headers", [LENGTH, [], [*LENGTH, (b"connection", b"close")]])
async def test_an_answer_sent_whole_is_what_its_parts_would_be(
    method: str, version: str, headers: list[tuple[bytes, bytes]]
) -> None:
    whole, parts = House(method, version), House(method, version)
    whole.cycle.send_whole(200, headers, b"hello")
    await parts.cycle.start(200, headers, body_follows=True)
    await parts.cycle.write(b"hello", more=False)
    assert whole.transport.writes == parts.transport.writes
    assert (whole.completed, whole.transport.closed) == (1, parts.transport.closed)
    with pytest.raises(RuntimeError):
        whole.cycle.send_whole(200, headers, b"again")


@pytest.mark.parametrize("data", [b"hell", b"hello!"])
async def test_an_answer_sent_whole_has_the_length_it_says(data: bytes) -> None:
    house = House()
    with pytest.raises(RuntimeError, match="Content-Length"):
        house.cycle.send_whole(200, LENGTH, data)
    assert not house.completed


@pytest.mark.parametrize("field", [(b"x", b"a\r\nb: c"), (b"x", b"a\nb"), (b"x\0", b"a"), (b"x", b"a\x7f")])
async def test_a_head_with_control_characters_is_not_sent(field: tuple[bytes, bytes]) -> None:
    house = House()
    with pytest.raises(RuntimeError, match="control characters"):
        house.cycle.send_whole(200, [*LENGTH, field], b"hello")
    assert not house.transport.writes


async def test_only_control_characters_are_refused_in_a_head() -> None:
    refused = set()
    for code in range(256):
        house, value = House(), b"a%cb" % code
        try:
            house.cycle.send_whole(200, [*LENGTH, (b"x-name", value)], b"hello")
        except RuntimeError:
            refused.add(code)
        else:
            assert b"\r\nx-name: %b\r\n" % value in house.transport.writes[0]
    assert refused == {*range(0x20), 0x7F} - {ord("\t")}


async def test_a_cycle_that_is_over_is_none_of_the_tasks() -> None:
    house, tasks = House(), set[asyncio.Task[None]]()

    async def app(scope: object, receive: object, send: object) -> None:
        assert tasks == {asyncio.current_task()}
        await house.cycle.start(200, LENGTH, body_follows=True)
        await house.cycle.write(b"hello", more=False)

    house.cycle.tasks = tasks
    house.cycle.task = asyncio.create_task(house.cycle.run_asgi(app))
    tasks.add(house.cycle.task)
    await house.cycle.task
    assert not tasks


async def test_a_head_does_not_wait_for_a_body_that_comes_later() -> None:
    house = House()
    await house.cycle.start(200, LENGTH)
    await asyncio.sleep(0)
    assert house.transport.writes[0].endswith(b"\r\n\r\n")
    await house.cycle.write(b"hello", more=False)
    assert house.transport.writes[1:] == [b"hello"]


async def test_an_answer_that_stays_unended_shows_its_head_and_ends_the_connection() -> None:
    house = House()

    async def app(scope: object, receive: object, send: object) -> None:
        await house.cycle.start(200, LENGTH)

    await house.cycle.run_asgi(app)
    assert house.transport.writes
    assert house.transport.closed
    assert not house.completed


@pytest.mark.parametrize("field", [(b"x-a", b"1\r\nx-b: 2"), (b"x\n", b"1"), (b"x-a", b"\x00")])
async def test_a_field_that_could_end_the_head_is_not_sent(field: tuple[bytes, bytes]) -> None:
    house = House()
    with pytest.raises(RuntimeError):
        await house.cycle.start(200, [field])
    await asyncio.sleep(0)
    assert not house.transport.writes


@pytest.mark.parametrize(
    ("method", "version", "status", "framed"),
    [
        ("POST", "1.1", 200, b"\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"),
        ("POST", "1.0", 200, b"\r\nconnection: close\r\n\r\nhi"),
        ("HEAD", "1.1", 200, b"date: now\r\n\r\n"),
    ],
)
async def test_an_answer_without_a_length_is_framed_by_what_its_client_knows(
    method: str, version: str, status: int, framed: bytes
) -> None:
    house = House(method, version)
    await house.cycle.start(status, [])
    await house.cycle.write(b"hi", more=True)
    await house.cycle.write(b"", more=False)
    assert b"".join(house.transport.writes).endswith(framed)
    assert house.transport.closed == (version == "1.0")


@pytest.mark.parametrize("body", [b"longer", b"four"])
async def test_an_answer_of_another_length_is_an_error(body: bytes) -> None:
    house = House()
    await house.cycle.start(200, LENGTH)
    with pytest.raises(RuntimeError):
        await house.cycle.write(body, more=False)
    assert not house.completed


async def test_a_body_that_is_there_is_taken_whole_and_once() -> None:
    house = House()
    house.cycle.feed(b"ab")
    assert house.cycle.take_whole(10) is None
    house.cycle.feed(b"cd")
    house.cycle.end_request()
    assert house.cycle.take_whole(3) is None
    assert house.cycle.take_whole(4) == b"abcd"
    assert house.cycle.take_whole(4) is None


async def test_a_client_that_waits_to_be_told_is_told_to_go_on() -> None:
    house = House(expects=True)
    house.cycle.feed(b"early")
    house.cycle.end_request()
    assert house.cycle.take_whole(10) is None
    assert await house.cycle.receive() == {"type": "http.request", "body": b"early", "more_body": False}
    assert house.transport.writes == [b"HTTP/1.1 100 Continue\r\n\r\n"]


async def test_a_reader_waits_for_what_comes_and_hears_of_the_end() -> None:
    house = House()
    reading = asyncio.ensure_future(house.cycle.receive())
    await asyncio.sleep(0)
    house.cycle.feed(b"a")
    assert (await reading)["body"] == b"a"
    house.cycle.disconnected = True
    house.cycle.message_event.set()
    assert await house.cycle.receive() == {"type": "http.disconnect"}


async def test_whoever_waits_hears_once_that_the_client_has_left() -> None:
    house, told = House(), list[str]()
    assert house.cycle.when_gone(lambda: told.append("gone"))
    house.cycle.gone()
    house.cycle.gone()
    assert (told, house.cycle.disconnected) == (["gone"], True)
    assert not house.cycle.when_gone(lambda: None)


async def test_nobody_hears_of_it_once_the_answer_is_complete() -> None:
    house, told = House(), list[str]()
    assert house.cycle.when_gone(lambda: told.append("gone"))
    house.cycle.send_whole(200, LENGTH, b"hello")
    house.cycle.gone()
    assert (told, house.cycle.disconnected) == ([], False)


@pytest.mark.parametrize(("method", "opened"), [("POST", True), ("HEAD", False)])
async def test_the_direct_way_is_there_until_the_application_has_ended(method: str, opened: bool) -> None:
    house, found = House(method), list[bool]()
    house.cycle.batch = WriteBatch()

    async def app(scope: object, receive: object, send: object) -> None:
        await house.cycle.start(200, LENGTH)
        await house.cycle.write(b"he", more=True)
        direct = open_direct(house.cycle)
        found.append(direct is not None and house.cycle.direct is direct)
        await house.cycle.write(b"llo", more=False)

    await house.cycle.run_asgi(app)
    assert (found, house.cycle.direct) == ([opened], None)


async def test_what_the_path_takes_waits_behind_what_was_written_meanwhile() -> None:
    """As an event of progress between two tokens: of that the client's socket may have taken a part only."""
    ours, client = socket.socketpair()
    with ours, client:
        house = House()
        waiting = house.transport.writes
        house.transport.get_extra_info = {"socket": ours}.get  # type: ignore[assignment]
        house.transport.get_write_buffer_size = lambda: sum(map(len, waiting))  # type: ignore[method-assign]
        house.cycle.batch = WriteBatch()
        await house.cycle.start(200, [], body_follows=True)
        await house.cycle.write(b"data: 1\n\n", more=True)
        direct = open_direct(house.cycle)
        assert direct is not None
        path = direct.path
        assert path is not None
        waiting.clear()  # the client took all
        credit = SimpleNamespace(received=0, granted=1000)
        stream = SimpleNamespace(peer="body", local=None, credit=credit, path=path)

        def arrive(event: bytes) -> None:
            message = b"\x12" + (1).to_bytes(4, "big") + len(event).to_bytes(4, "big") + event
            session, states = SimpleNamespace(received=0, granted=1000), ("body", "ended", "reset")
            receive_bodies(message, 0, {1: stream}, session, [], tuple, states, 0x12, 1000)

        path.open = True
        for event in (b"data: 2\n\n", b"data: 3\n\n"):
            arrive(event)
        beside = b"".join(waiting)  # without the native path all goes that way
        waiting.clear()
        await house.cycle.write(b"event: progress\n\n", more=True)
        arrive(b"data: 4\n\n")
        assert b"".join(waiting) == b"11\r\nevent: progress\n\n\r\n9\r\ndata: 4\n\n\r\n"
        client.setblocking(False)
        sent = b"" if beside else client.recv(1000)
        assert beside + sent == b"9\r\ndata: 2\n\n\r\n9\r\ndata: 3\n\n\r\n"
        direct.detach()
