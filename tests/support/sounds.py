"""Sounds, and recordings of them in the formats that there are."""

import io

import av
import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]


def tone(seconds: float, rate: int) -> Samples:
    """One channel, which becomes louder and quieter."""
    times = np.arange(int(seconds * rate)) / rate
    return (0.5 * np.sin(2 * np.pi * 440 * times) * np.sin(3 * times)).astype(np.float32)


def recording(
    samples: Samples, rate: int, *, kind: str = "wav", codec: str = "pcm_f32le", channels: int = 1
) -> bytes:
    """A file in which every channel has ``samples``."""
    layout = "mono" if channels == 1 else "stereo"
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=rate)
        assert isinstance(stream, av.AudioStream)
        stream.codec_context.layout = layout
        frame = av.AudioFrame.from_ndarray(np.tile(samples, (channels, 1)), format="fltp", layout=layout)
        frame.sample_rate = rate
        pieces = av.AudioResampler(
            format=stream.codec_context.format,
            layout=layout,
            rate=rate,
            frame_size=stream.codec_context.frame_size or 1024,
        )
        for piece in (frame, None) if samples.size else ():
            for each in pieces.resample(piece):
                container.mux(stream.encode(each))
        container.mux(stream.encode(None))
    return file.getvalue()
