"""Audio at the rate of OpenAI's clients, made into that of vLLM's models."""

from array import array
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from agent.engines.http.realtime.audio import Resampler

SAMPLE = st.integers(-32768, 32767)


def pcm(*samples: int) -> bytes:
    return array("h", samples).tobytes()


def test_of_three_samples_two_are_made_the_second_the_mean_of_two() -> None:
    assert Resampler().convert(pcm(0, 10, 20, 30, 40, 51)) == pcm(0, 15, 30, 45)
    assert Resampler().convert(pcm(-1, -32768, -32768, 5, 32767, 32767)) == pcm(-1, -32768, 5, 32767)


@given(st.lists(SAMPLE, max_size=60), st.lists(st.integers(0, 120), max_size=6))
def test_it_is_the_same_however_the_audio_is_cut(samples: list[int], cuts: list[int]) -> None:
    data = pcm(*samples)
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    resampler = Resampler()
    pieces = [resampler.convert(data[start:end]) for start, end in pairwise(places)]
    assert b"".join(pieces) == Resampler().convert(data)
    assert len(Resampler().convert(data)) == len(samples) // 3 * 4


def test_what_is_left_is_forgotten_when_an_utterance_ends() -> None:
    resampler = Resampler()
    assert resampler.convert(pcm(1, 2)) == b""
    resampler.clear()
    assert resampler.convert(pcm(3, 4, 4)) == pcm(3, 4)
