"""What requests for videos say, and the same with another prompt."""

from collections.abc import AsyncIterator

import orjson
import pytest

from gateway.api.jobs.video_bodies import (
    AskedVideo,
    asked_video,
    form_with_prompt,
    is_form,
    json_with_prompt,
)
from gateway.domain.errors import BadRequest
from tests.support.scripted_engine.upload import Upload

KIND = "multipart/form-data; boundary=b"
FILM = b"\x00\r\n--film\r\n" * 50


def part(name: str, value: bytes, more: bytes = b"") -> bytes:
    return b'--b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % (name.encode(), more, value)


FILE = part("input_reference", FILM, b'; filename="a.png"\r\nContent-Type: image/png')
FORM = part("model", b"m") + part("prompt", b"rain") + FILE + part("seconds", b"8") + b"--b--\r\n"


async def cut(data: bytes, piece_bytes: int) -> AsyncIterator[bytes]:
    for at in range(0, len(data), piece_bytes):
        yield data[at : at + piece_bytes]


def test_a_form_says_what_it_has_as_far_as_it_is_there() -> None:
    assert asked_video(KIND, FORM) == AskedVideo("rain", "8", None)
    assert asked_video(KIND, FORM[: len(FORM) // 2]) == AskedVideo("rain", None, None)
    assert asked_video(KIND, b"--b\r\n" + b"\x00" * 100) == AskedVideo()
    assert asked_video(KIND, part("prompt", b"a") + part("prompt", b"b")) == AskedVideo("a", None, None)


def test_json_says_what_it_has_if_it_is_whole() -> None:
    body = orjson.dumps({"prompt": "rain", "seconds": 8, "size": "64x32"})
    assert asked_video("application/json", body) == AskedVideo("rain", "8", "64x32")
    assert asked_video("application/json", body[:-1]) == AskedVideo()
    assert asked_video("application/json", b"[]") == AskedVideo()
    assert asked_video("application/json", b'{"prompt": ["a"], "seconds": true}') == AskedVideo()


@pytest.mark.parametrize("piece_bytes", [1, 13, 10_000])
async def test_a_form_with_another_prompt_is_the_same_but_for_it(piece_bytes: int) -> None:
    pieces = form_with_prompt(KIND, cut(FORM, piece_bytes), "snöw")
    made = Upload(KIND)
    made.feed(b"".join([piece async for piece in pieces]))
    before = Upload(KIND)
    before.feed(FORM)
    assert made.fields == {"prompt": "snöw", "model": "m", "seconds": "8"}
    assert made.sha256 == before.sha256, "the file is as it was"


async def test_a_form_that_was_cut_off_is_refused() -> None:
    with pytest.raises(BadRequest):
        _ = [piece async for piece in form_with_prompt(KIND, cut(FORM[:-20], 50), "snow")]


def test_json_with_another_prompt_is_the_same_but_for_it() -> None:
    assert orjson.loads(json_with_prompt(b'{"prompt": "rain", "a": 1}', "snow")) == {"prompt": "snow", "a": 1}
    with pytest.raises(BadRequest):
        json_with_prompt(b"[]", "snow")


def test_a_form_is_known_by_its_type() -> None:
    assert is_form(" Multipart/Form-Data; boundary=x")
    assert not is_form("application/json")
