import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.bodies import BodyReader, read_facts
from gateway.errors import BadRequest, Overloaded

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
    process = reader._idle[0]._process
    process.kill()
    await asyncio.to_thread(process.wait)
    assert (await reader.read(BODY)).members["model"] == "m"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_what_is_sent_to_all_processes_of_a_service_ends_no_reader(
    reader: BodyReader, number: signal.Signals
) -> None:
    """systemd sends SIGTERM to all of them, and the gateway has yet to finish what it has begun."""
    await reader.read(BODY)
    process = reader._idle[0]._process
    process.send_signal(number)
    assert (await reader.read(BODY)).members["model"] == "m"
    assert reader._idle[0]._process is process
