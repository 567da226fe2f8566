"""Recordings of many kinds as samples."""

import io
import sys
import wave
from pathlib import Path

import av
import numpy as np
import pytest

from agent.engines.torch import recordings
from agent.engines.torch.errors import InvalidRequest
from agent.engines.torch.recordings import read_recording
from tests.support.sounds import recording, tone

RATE = 16_000


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize(
    ("kind", "codec", "rate"),
    [
        ("wav", "pcm_f32le", 16_000),
        ("wav", "pcm_s16le", 44_100),
        ("flac", "flac", 44_100),
        ("mp3", "libmp3lame", 22_050),
        ("ogg", "libopus", 48_000),
        ("webm", "libopus", 48_000),
    ],
)
def test_recordings_of_several_kinds_rates_and_channels_are_read(
    kind: str, codec: str, rate: int, channels: int
) -> None:
    data = recording(tone(1.0, rate), rate, kind=kind, codec=codec, channels=channels)
    found, duration_s = read_recording(data, RATE)
    wanted = tone(1.0, RATE)
    assert found.dtype == np.float32
    assert duration_s == len(found) / RATE == pytest.approx(1.0, abs=0.05)
    length = min(len(found), len(wanted))
    assert float(np.abs(found[:length] - wanted[:length]).mean()) < 0.02


@pytest.mark.parametrize("kind", ["mp4", "adts"])
def test_the_sound_of_films_is_read(kind: str) -> None:
    found, duration_s = read_recording(recording(tone(1.0, 44_100), 44_100, kind=kind, codec="aac"), RATE)
    assert duration_s == pytest.approx(1.0, abs=0.05)
    assert int(np.abs(np.fft.rfft(found[:RATE])).argmax()) == pytest.approx(440, abs=3)


def test_a_film_without_sound_is_refused() -> None:
    data = io.BytesIO()
    with av.open(data, "w", format="mp4") as file:
        pictures = file.add_stream("mpeg4", rate=10)
        pictures.width, pictures.height, pictures.pix_fmt = 64, 64, "yuv420p"
        black = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
        file.mux([*pictures.encode(black), *pictures.encode(None)])
    with pytest.raises(InvalidRequest, match="more than 0 s"):
        read_recording(data.getvalue(), RATE)


def test_a_damaged_packet_is_left_out() -> None:
    data = bytearray(recording(tone(2.0, RATE), RATE, kind="flac", codec="flac"))
    middle = len(data) // 2
    data[middle : middle + 200] = bytes(200)
    _, duration_s = read_recording(bytes(data), RATE)
    assert 1.0 < duration_s < 2.0


@pytest.mark.parametrize("data", [b"", b"RIFF no recording", b"\x89PNG\r\n\x1a\n" + bytes(500)])
def test_what_is_no_recording_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="no recording"):
        read_recording(data, RATE)


def test_a_list_of_files_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "private.wav").write_bytes(recording(tone(1.0, RATE), RATE))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequest, match="no recording"):
        read_recording(b"ffconcat version 1.0\nfile private.wav\n", RATE)


def test_recordings_of_no_length_and_of_too_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as empty:
        empty.setnchannels(1)
        empty.setsampwidth(2)
        empty.setframerate(RATE)
    with pytest.raises(InvalidRequest, match="more than 0 s"):
        read_recording(file.getvalue(), RATE)
    monkeypatch.setattr(recordings, "MOST_S", 1)
    assert read_recording(recording(tone(1.0, RATE), RATE), RATE)[1] == 1.0
    with pytest.raises(InvalidRequest, match="at most four hours"):
        read_recording(recording(tone(1.1, RATE), RATE), RATE)


def test_without_the_library_recordings_are_refused_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(InvalidRequest, match=r"trunkline\[audio\]"):
        read_recording(b"", RATE)
