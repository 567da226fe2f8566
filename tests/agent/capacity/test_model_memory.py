"""What fits into a host's memory for models."""

import pytest

from agent.capacity.model_memory import GIB, ModelMemory
from agent.engines.backend import BackendRefused
from agent.engines.managed import LoadAttempt


class Engine:
    def __init__(self, name: str, memory: int | None, *, wanted: bool = True, managed: bool = True) -> None:
        self.name = name
        self.wanted = wanted
        memory_bytes = None if memory is None else memory * GIB
        self.loading = LoadAttempt(managed=managed, memory_bytes=memory_bytes)


def test_an_engine_fits_beside_those_that_have_their_memory() -> None:
    room, new = ModelMemory(lambda: 80 * GIB), Engine("new", 40, wanted=False)
    beside = [Engine("a", 30), Engine("b", 30, wanted=False), new]
    room.check(new, beside)
    with pytest.raises(BackendRefused, match=r"40\.0 GiB of 80\.0 GiB .*, 60\.0 GiB of which .* by a, c"):
        room.check(new, [*beside, Engine("c", 30)])


def test_an_engine_that_is_larger_than_all_there_is_never_fits() -> None:
    with pytest.raises(BackendRefused, match=r"90\.0 GiB of 80\.0 GiB for models$"):
        ModelMemory(lambda: 80 * GIB).check(Engine("huge", 90), [])


def test_one_that_nothing_is_known_of_takes_all() -> None:
    room, unknown = ModelMemory(lambda: 80 * GIB), Engine("unknown", None)
    assert room.need_bytes(unknown) == 80 * GIB
    room.check(unknown, [unknown])
    with pytest.raises(BackendRefused):
        room.check(unknown, [Engine("small", 1)])
    with pytest.raises(BackendRefused):
        room.check(Engine("small", 1), [unknown])


def test_without_a_bound_everything_fits() -> None:
    ModelMemory().check(Engine("huge", 900), [Engine("other", None)])
    assert ModelMemory().for_managed_bytes([Engine("pinned", 1, managed=False)]) is None


def test_what_is_never_unloaded_is_not_for_others() -> None:
    room = ModelMemory(lambda: 80 * GIB)
    assert room.for_managed_bytes([Engine("a", 30), Engine("pinned", 20, managed=False)]) == 60 * GIB
    assert room.for_managed_bytes([Engine("pinned", None, managed=False)]) == 1
