"""Recordings as samples, by PyAV, whose wheels contain FFmpeg's libraries. It is optional."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from agent.engines.torch.errors import InvalidRequest

NOT_INSTALLED = "Recordings need PyAV on the engine's host: pip install 'trunkline[audio]'."
MOST_S = 4 * 3600

_OPTIONS = {
    "format_whitelist": "aac,aiff,flac,matroska,mov,mp3,ogg,wav,w64,webm",
    "protocol_whitelist": "none",
}
"""Formats whose files contain everything themselves. FFmpeg also reads playlists, and those name other files
and addresses, which it would open."""


def read_recording(data: bytes, rate: int) -> tuple[Any, float]:
    """The samples of one channel at ``rate`` per second, as float32, and the length in seconds.

    Packets that cannot be decoded are left out. Raises InvalidRequest for what is no
    recording, and for one longer than four hours.
    """
    try:
        import av
    except (ImportError, OSError) as error:
        raise InvalidRequest(NOT_INSTALLED, param="file", code="unsupported_parameter") from error
    pieces: list[Any] = []
    count = 0
    try:
        with av.open(io.BytesIO(data), metadata_errors="ignore", container_options=_OPTIONS) as file:
            for piece in _resampled(av, file, rate):
                pieces.append(piece)
                count += piece.size
                if count > MOST_S * rate:
                    break
    except (av.FFmpegError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRequest(f"file is no recording that can be read: {reason}", param="file") from error
    if not 0 < count <= MOST_S * rate:
        raise InvalidRequest("file must be of more than 0 s and at most four hours.", param="file")
    return np.concatenate(pieces), count / rate


def _resampled(av: Any, file: Any, rate: int) -> Iterator[Any]:
    """The first sound in ``file``. Its own rate and channels may change within it."""
    resampler, source = None, None
    for frame in _frames(av, file):
        found = None if frame is None else (frame.sample_rate, frame.format.name, frame.layout.name)
        if found != source:
            yield from _samples(resampler, None)
            resampler, source = av.AudioResampler(format="fltp", rate=rate), found
        yield from _samples(resampler, frame)
    yield from _samples(resampler, None)


def _frames(av: Any, file: Any) -> Iterator[Any]:
    sounds = file.streams.audio[:1]
    for packet in file.demux(sounds) if sounds else ():  # of no stream it would give the packets of all
        try:
            yield from packet.decode()
        except av.error.InvalidDataError:
            continue


def _samples(resampler: Any, frame: Any) -> Iterator[Any]:
    """The mean of the channels of ``frame``; None: of what the resampler still has."""
    for made in () if resampler is None else resampler.resample(frame):
        if made is not None:
            yield made.to_ndarray().mean(axis=0)
