"""One peer's trouble is noted, and the others are measured."""

from types import SimpleNamespace, TracebackType
from typing import Any, Self

import pytest

from tests.bench.peers import run
from tests.bench.peers.workloads import Scale


class _Stubborn:
    """A house of which some child had to be killed."""

    killed: tuple[str, ...] = ("ssh",)

    def __init__(self, directory: object) -> None:
        self.children = SimpleNamespace(killed=[SimpleNamespace(name=name) for name in self.killed])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if kind is None:
            raise AssertionError("did not stop when they were asked to")


def _noted(monkeypatch: pytest.MonkeyPatch, put_through: Any) -> list[str]:
    monkeypatch.setattr(run, "House", _Stubborn)
    monkeypatch.setattr(run, "_put_through", put_through)
    results = run.Results(Scale(), (), 1, {}, "")
    peer: Any = SimpleNamespace(name="ssh+nginx")
    tools: Any = None
    run._one(results, 0, peer, tools, lambda line: None)
    return results.failed


def test_a_program_that_does_not_stop_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = _noted(monkeypatch, lambda *arguments: None)
    assert failed == ["ssh+nginx, round 1: did not stop when asked to: ssh"]


def test_what_else_is_not_so_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Stubborn, "killed", ())
    with pytest.raises(AssertionError):
        _noted(monkeypatch, lambda *arguments: None)
