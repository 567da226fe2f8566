"""Previews that are too long to be told are made smaller, the newest first."""

import asyncio
import io
import random

import pytest
from PIL import Image

from agent.engines.comfyui import previews
from agent.engines.comfyui.previews import PreviewFitter, shrunk
from shared.protocol.limits import PREVIEW_BYTES
from shared.protocol.progress import Preview


def noise(side: int, form: str = "PNG") -> bytes:
    """A picture that cannot be compressed much."""
    written = io.BytesIO()
    Image.frombytes("RGB", (side, side), random.Random(1).randbytes(3 * side * side)).save(written, form)
    return written.getvalue()


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_a_long_picture_becomes_a_short_one(form: str) -> None:
    data = noise(512, form)
    assert len(data) > PREVIEW_BYTES
    smaller = shrunk(data)
    assert smaller is not None
    assert smaller.type == "image/jpeg"
    assert 1000 < len(smaller.data) <= PREVIEW_BYTES
    assert Image.open(io.BytesIO(smaller.data)).size[0] >= 64


def test_what_is_no_picture_or_too_large_a_one_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shrunk(b"\xff\xd8" + bytes(20_000)) is None
    assert shrunk(noise(512)[:30_000]) is None
    monkeypatch.setattr(previews, "MOST_PIXELS", 100)
    assert shrunk(noise(64)) is None


async def test_short_ones_pass_at_once_and_of_long_ones_the_newest_waits() -> None:
    fitter, told = PreviewFitter(), list[tuple[int, int]]()
    short, long = Preview("image/png", b"x" * PREVIEW_BYTES), Preview("image/png", noise(256))
    fitter.fit(short, lambda preview: told.append((0, len(preview.data))))
    assert told == [(0, PREVIEW_BYTES)]
    for number in range(1, 5):
        fitter.fit(long, lambda preview, number=number: told.append((number, 0)))  # type: ignore[misc]
    async with asyncio.timeout(60):
        while told[-1][0] != 4:  # noqa: ASYNC110  it is told by a thread
            await asyncio.sleep(0.01)
    assert [number for number, _ in told] == [0, 4]
    await fitter.close()


async def test_without_pillow_long_ones_are_left_out() -> None:
    fitter, told = PreviewFitter(able=False), list[Preview]()
    fitter.fit(Preview("image/png", noise(256)), told.append)
    await fitter.close()
    assert told == []
