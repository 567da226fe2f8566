"""Every fuzzer, small: only documented errors come out of anything it puts in."""

import gc
import sys
from collections.abc import Iterator
from random import Random
from types import FrameType
from typing import Any

import pytest

from shared.speedups import NATIVE, native
from tests.fuzz import fuzz_native, native_arguments, native_callbacks, native_reads, sanitized
from tests.fuzz.runner import names, run_round

_SMALL_INPUTS = 500
_LEAKED_BLOCKS = 300
"""Fewer come and go with caches. One kept by each input that uses some function would be more."""

_OF_THE_PROCESS = {"collapse_pages", "use_huge_pages"}
"""What takes nothing and changes the whole process. They have tests of their own."""

needs_native = pytest.mark.skipif(not NATIVE, reason="the native functions were not built")


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


class Recording:
    """The native module, and which of its names were used."""

    def __init__(self) -> None:
        self.used: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.used.add(name)
        return getattr(native, name)

    def profile(self, frame: FrameType, event: str, called: Any) -> None:
        """As of :func:`sys.setprofile`: methods of the module's types."""
        kind = type(getattr(called, "__self__", None))
        if event == "c_call" and kind.__module__ == native.__name__:
            self.used.add(f"{kind.__name__}.{called.__name__}")


def _offered() -> Iterator[str]:
    """The functions of the native module, its types and their methods."""
    for name, value in vars(native).items():
        if callable(value) and not name.startswith("_") and name not in _OF_THE_PROCESS:
            yield name
        if isinstance(value, type):
            yield from (
                f"{name}.{method}"
                for method in vars(value)
                if not method.startswith("_") and callable(vars(value)[method])
            )


@needs_native
def test_all_that_is_native_is_compared_by_a_fuzzer(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording()
    for module in (fuzz_native, native_reads):
        monkeypatch.setattr(module, "native", recording)
    random = Random(1)
    sys.setprofile(recording.profile)
    try:
        for _ in range(50):
            for compare in fuzz_native.COMPARED:
                compare(random)
    finally:
        sys.setprofile(None)
    assert recording.used == set(_offered())


@needs_native
def test_all_that_is_native_is_given_wrong_arguments() -> None:
    methods = {name for name in native_arguments.offered_names() if not name.endswith("__call__")}
    assert methods == set(_offered())


@needs_native
@pytest.mark.parametrize(
    "target", [*fuzz_native.COMPARED, native_arguments.arguments, native_callbacks.callbacks]
)
def test_nothing_is_kept(target: Any) -> None:
    def tried(inputs: int) -> int:
        for number in range(inputs):
            target(Random(number))
        gc.collect()
        return sys.getallocatedblocks()

    tried(300)  # what is kept once
    before = tried(300)
    assert tried(1500) - before < _LEAKED_BLOCKS
