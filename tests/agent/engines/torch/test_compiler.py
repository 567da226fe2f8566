"""PyTorch's compiler is not imported before it is used."""

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from agent.engines.torch.compiler import COMPILER, leave_out_compiler

MARKS: Any = torch.compiler
"""What transformers marks functions with."""


class Compiler(ModuleType):
    """A compiler that notes what it keeps out."""

    def __init__(self) -> None:
        super().__init__(COMPILER)
        self.kept_out: list[tuple[Any, ...]] = []

    def disable(self, function: Any, recursive: bool = True, **options: Any) -> Any:
        self.kept_out.append((recursive, options["reason"]))
        return lambda value: function(value) + 100


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that did not import it, before and after."""
    for name in [name for name in sys.modules if name.split(".")[:2] == COMPILER.split(".")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(vars(torch), "_dynamo", raising=False)  # to ask torch for it would import it
    yield
    for name in [name for name in sys.modules if name.split(".")[:2] == COMPILER.split(".")]:
        del sys.modules[name]


def doubled(value: int) -> int:
    return 2 * value


def test_a_function_that_is_to_stay_uncompiled_is_called_as_it_is() -> None:
    leave_out_compiler()
    called = MARKS.disable(doubled, reason="why")
    named = MARKS.disable(recursive=False, reason="why")(doubled)
    assert (called(2), named(3)) == (4, 6)
    assert called.__name__ == "doubled"
    assert called._torchdynamo_disable


def test_once_the_compiler_is_there_it_keeps_the_function_out(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_compiler()
    called = MARKS.disable(doubled, reason="why")
    compiler = Compiler()
    monkeypatch.setitem(sys.modules, COMPILER, compiler)
    assert (called(1), called(2)) == (102, 104)
    assert compiler.kept_out == [(True, "why")]


def test_marks_are_left_out() -> None:
    leave_out_compiler()
    tensor = torch.zeros(1)
    torch._dynamo.mark_static_address(tensor, guard=False)
    assert MARKS.allow_in_graph(doubled) is doubled
    assert MARKS.assume_constant_result(doubled) is doubled


def test_who_needs_more_of_it_gets_the_compiler_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler()
    compiler.optimize = "its own"  # type: ignore[attr-defined]

    def imported(name: str) -> ModuleType:
        assert name == COMPILER
        assert name not in sys.modules
        sys.modules[name] = compiler
        return compiler

    leave_out_compiler()
    stand_in = sys.modules[COMPILER]
    monkeypatch.setattr(importlib, "import_module", imported)
    assert stand_in.optimize == "its own"
    assert sys.modules[COMPILER] is compiler


def test_a_compiler_that_is_there_is_left_alone() -> None:
    compiler = Compiler()
    sys.modules[COMPILER] = compiler
    leave_out_compiler()
    assert sys.modules[COMPILER] is compiler
