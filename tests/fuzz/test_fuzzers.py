"""Every fuzzer, small: only documented errors come out of anything it puts in."""

import pytest

from tests.fuzz.runner import names, run_round

_SMALL_INPUTS = 1000


@pytest.mark.parametrize("name", names())
def test_nothing_but_documented_errors_comes_out(name: str) -> None:
    done = run_round(name, seed=1, inputs=_SMALL_INPUTS)
    assert done.failure is None, done.failure
    assert done.inputs >= _SMALL_INPUTS // 2
