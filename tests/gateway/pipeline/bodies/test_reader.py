import asyncio
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import orjson
import pytest

from gateway.domain.errors import BadRequest, BodyTooLarge, Overloaded
from gateway.pipeline.bodies import child
from gateway.pipeline.bodies import reader as module
from gateway.pipeline.bodies.facts import read_facts
from gateway.pipeline.bodies.reader import BodyReader

BODY = [b'{"model":"m","prompt":"', b"x" * 300_000, b'","stream_options":null}']


@pytest.fixture
async def reader() -> AsyncIterator[BodyReader]:
    reader = BodyReader(1)
    yield reader
    reader.close()


async def test_a_package_of_the_same_name_in_the_current_directory_is_not_run(
    reader: BodyReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in (tmp_path / "gateway", tmp_path / "gateway" / "bodies"):
        package.mkdir()
        (package / "__init__.py").write_text("open('taken', 'w').close()")
    monkeypatch.chdir(tmp_path)
    assert (await reader.read(BODY)).members["model"] == "m"
    assert not (tmp_path / "taken").exists()


async def test_another_process_tells_the_same(reader: BodyReader) -> None:
    told, here = await reader.read(BODY), read_facts(b"".join(BODY), long=True)
    assert (told.members, list(told.prefix)) == (here.members, list(here.prefix))
    assert [tuple(place) for place in told.options] == here.options


async def test_what_is_wrong_with_a_body_is_told_and_the_next_one_is_read(reader: BodyReader) -> None:
    with pytest.raises(BadRequest) as caught:
        await reader.read([b"[" * 100_000])
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")
    assert (await reader.read(BODY)).members["model"] == "m"


async def test_much_text_beside_the_prompt_is_refused(reader: BodyReader) -> None:
    """What is told is parsed on the event loop."""
    much = {f"x{n}": {f"y{k}": "z" * 500 for k in range(900)} for n in range(3)}
    with pytest.raises(BadRequest, match="beside its prompt"):
        await reader.read([orjson.dumps({"model": "m", **much})])
    few = {f"x{n}": "z" * 500 for n in range(900)}
    assert (await reader.read([orjson.dumps({"model": "m", **few})])).members["x0"] == "z" * 500


def test_a_child_imports_no_more_than_it_needs() -> None:
    """A long body waits for its start."""
    tells = "import sys; from gateway.pipeline.bodies import child; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", tells], capture_output=True, text=True, check=True)
    packages = {name.partition(".")[0] for name in ended.stdout.split()}
    assert "msgspec" in packages
    assert packages.isdisjoint({"asyncio", "pydantic", "structlog"})


async def test_a_reader_that_dies_costs_one_request(tmp_path: Path) -> None:
    dies = f"import os, pathlib; pathlib.Path({str(tmp_path / 'x')!r}).touch(); os.read(0, 9); os._exit(1)"
    reader = BodyReader(1, (sys.executable, "-c", dies))
    for _ in range(2):
        with pytest.raises(Overloaded):
            await reader.read(BODY)
    assert (tmp_path / "x").exists()
    reader.close()


async def test_a_reader_that_cannot_be_started_is_a_refusal() -> None:
    with pytest.raises(Overloaded):
        await BodyReader(1, ("/nonexistent/python",)).read(BODY)


async def test_a_request_that_is_given_up_leaves_nothing_behind(reader: BodyReader) -> None:
    await reader.read(BODY)
    given_up = [asyncio.create_task(reader.read(BODY, owner)) for owner in ("a", "a", "b")]
    for _ in range(3):
        await asyncio.sleep(0)
    for task in given_up:
        task.cancel()
    await asyncio.gather(*given_up, return_exceptions=True)
    assert not reader._waiting
    assert (await reader.read(BODY)).members["model"] == "m"


async def test_a_request_that_is_given_up_while_a_reader_starts_gives_it_no_other_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The number of a socket that is closed is the next connection's."""
    begun, go_on, over = threading.Event(), threading.Event(), threading.Event()
    passed_on: list[int] = []

    def start(command: Sequence[str], its: socket.socket) -> None:
        begun.set()
        go_on.wait(60)
        passed_on.append(its.fileno())
        over.set()
        raise OSError

    monkeypatch.setattr(module, "_start", start)
    reading = asyncio.create_task(BodyReader(1).read(BODY))
    assert await asyncio.to_thread(begun.wait, 60)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    go_on.set()
    assert await asyncio.to_thread(over.wait, 60)
    assert passed_on != [-1], "its socket was closed under it"


async def test_keys_take_turns(reader: BodyReader) -> None:
    order: list[str] = []

    async def read(owner: str) -> None:
        await reader.read(BODY, owner)
        order.append(owner)

    await reader.read(BODY)
    await asyncio.gather(*(read("many") for _ in range(6)), read("one"))
    assert order.index("one") <= 2
    assert len(order) == 7


async def test_a_reader_that_was_ended_while_it_waited_is_replaced(reader: BodyReader) -> None:
    await reader.read(BODY)
    process = reader._idle[0].process
    process.kill()
    await asyncio.to_thread(process.wait)
    assert (await reader.read(BODY)).members["model"] == "m"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_what_is_sent_to_all_processes_of_a_service_ends_no_reader(
    reader: BodyReader, number: signal.Signals
) -> None:
    """systemd sends SIGTERM to all of them, and the gateway has yet to finish what it has begun."""
    await reader.read(BODY)
    process = reader._idle[0].process
    process.send_signal(number)
    assert (await reader.read(BODY)).members["model"] == "m"
    assert reader._idle[0].process is process


LIMITED = (
    "import sys; from gateway.pipeline.bodies import child; "
    "child.LIMIT_TIMES, child.LIMIT_MORE_BYTES = {times}, {more}; sys.exit(child.main())"
)
MIB = 1024 * 1024


@contextmanager
def limited(times: int, more_bytes: int) -> Iterator[BodyReader]:
    """A reader whose child has less memory than bodies can need.

    It needs more than 8 MiB more: orjson has a buffer of 8 MiB for bodies of any length up to that, and takes
    it anew where the allocator has given it back. With less, the next body fails as well, or does not.
    """
    reader = BodyReader(1, (sys.executable, "-P", "-c", LIMITED.format(times=times, more=more_bytes)))
    with closing(reader):
        yield reader


linux = pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is limited on Linux only")

TEXT = b'{"model":"m","prompt":"' + b"x" * (24 * MIB) + b'"}'
OBJECTS = b'{"model":"m","x":[' + b'{"a":1},' * 900_000 + b"1]}"
UNDECODABLE = TEXT[:-2] + b'\xff"}'


@linux
@pytest.mark.parametrize("times", [0, 3, 12])
@pytest.mark.parametrize("body", [TEXT, OBJECTS, UNDECODABLE], ids=["text", "objects", "undecodable"])
async def test_a_body_that_takes_more_memory_than_it_may_fails_alone(body: bytes, times: int) -> None:
    """Wherever the memory ends: before the body is there, in the parser, behind it."""
    with limited(times, 21 * MIB) as reader:
        assert (await reader.read(BODY)).members["model"] == "m"
        before = reader._idle[0].process
        refused = None
        try:
            await reader.read([body])
        except (BodyTooLarge, BadRequest) as error:
            refused = error
        if times == 0 or (times == 3 and body is not UNDECODABLE):
            assert isinstance(refused, BodyTooLarge)
            assert (refused.status, refused.code) == (413, "request_too_large")
            assert before.returncode is not None
        assert isinstance(refused, BodyTooLarge) or (refused is None) is (body is not UNDECODABLE)
        assert (await reader.read(BODY)).members["model"] == "m"


def nested(count: int, depth: int) -> bytes:
    """Objects with keys that are all different and wide."""
    lines = (
        b"".join(b'{"\xf0\x9f\x98\x80%07d":' % (depth * line + level) for level in range(depth))
        + b"1"
        + b"}" * depth
        for line in range(count // depth)
    )
    return b'{"model":"m","messages":[' + b",".join(lines) + b"]}"


@linux
@pytest.mark.parametrize(
    "body",
    [
        TEXT[:-2] + b'\xf0\x9f\x98\x80"}',
        OBJECTS,
        nested(200_000, 200),
        b'{"model":"m","prompt":[' + b'"\xf0\x9f\x98\x80",' * 1_900_000 + b'""]}',
    ],
    ids=["wide text", "objects", "nested objects", "wide texts"],
)
async def test_bodies_that_need_much_memory_need_three_quarters_of_what_they_may_take(body: bytes) -> None:
    with limited(child.LIMIT_TIMES * 3 // 4, child.LIMIT_MORE_BYTES * 3 // 4) as reader:
        assert (await reader.read([body])).members["model"] == "m"
