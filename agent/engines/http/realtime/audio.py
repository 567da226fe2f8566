"""Audio from the rate that OpenAI's clients send to the one that vLLM's models hear. Pure."""

import sys
from array import array

CLIENT_RATE = 24_000
ENGINE_RATE = 16_000
"""Samples a second of PCM16, mono, little endian (vllm/entrypoints/speech_to_text/realtime/api_router.py)."""

_SAMPLE_BYTES = 2


class Resampler:
    """Makes two samples of three, the second the mean of two: linear interpolation, as speech needs no more.

    What is left of a piece belongs to the next, so that nothing is lost between them.
    """

    def __init__(self) -> None:
        self._rest = b""

    def convert(self, pcm: bytes) -> bytes:
        """What there is now at the engine's rate."""
        data = self._rest + pcm
        whole = len(data) - len(data) % (3 * _SAMPLE_BYTES)
        self._rest = data[whole:]
        samples = array("h", data[:whole])
        if sys.byteorder == "big":
            samples.byteswap()
        made = array("h", bytes(whole // 3 * 2))
        made[0::2] = samples[0::3]
        made[1::2] = array("h", [(a + b) >> 1 for a, b in zip(samples[1::3], samples[2::3], strict=True)])
        if sys.byteorder == "big":
            made.byteswap()
        return made.tobytes()

    def clear(self) -> None:
        """What comes next does not belong to what was before."""
        self._rest = b""
