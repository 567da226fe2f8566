"""Every fuzzer, small: only documented errors come out of anything it puts in."""

import pytest

from tests.fuzz import sanitized
from tests.fuzz.runner import names, run_round

_SMALL_INPUTS = 1000


@pytest.mark.parametrize("name", names())
def test_nothing_but_documented_errors_comes_out(name: str) -> None:
    done = run_round(name, seed=1, inputs=_SMALL_INPUTS)
    assert done.failure is None, done.failure
    assert done.inputs >= _SMALL_INPUTS // 2


def test_sanitizers_find_nothing_in_the_native_functions() -> None:
    problem = sanitized.missing()
    if problem is not None:
        pytest.skip(problem)
    done = sanitized.run(inputs=5_000)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing found" in done.stdout
