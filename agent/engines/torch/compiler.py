"""PyTorch's compiler, which transformers imports, and which the engine does not use: it stays unimported.

To import ``torch._dynamo`` takes a tenth of an engine's start. Of its names transformers uses, without any
compiling, some that mark functions and tensors for it, and one that keeps a function out of compiled code.
:func:`leave_out_compiler` has stand-ins for these; whatever else is asked for imports the compiler after all.
"""

import functools
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
_MASKS = f"{COMPILER}._trace_wrapped_higher_order_op"


def leave_out_compiler() -> None:
    """From now on imports of the compiler get stand-ins, unless it is imported already. Code that needs more
    of it gets the compiler itself, and the stand-ins go."""
    if COMPILER in sys.modules:
        return
    compiler, masks = _StandIn(COMPILER), _StandIn(_MASKS)
    compiler.__path__ = []
    compiler.disable = disable  # type: ignore[attr-defined]
    for name in ("allow_in_graph", "assume_constant_result", "mark_static_address"):
        setattr(compiler, name, _as_it_is)
    masks.TransformGetItemToIndex = _mask_context  # type: ignore[attr-defined]
    sys.modules |= {COMPILER: compiler, _MASKS: masks}


def disable(function: Callable[..., Any] | None = None, recursive: bool = True, **options: Any) -> Any:
    """As ``torch._dynamo.disable``, which ``function`` gets when it is called with the compiler imported:
    before that, nothing is compiled."""
    if function is None:
        return functools.partial(disable, recursive=recursive, **options)
    kept_out: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal kept_out
        if kept_out is None:
            compiler = sys.modules.get(COMPILER)
            if compiler is None or isinstance(compiler, _StandIn):
                return function(*args, **kwargs)
            kept_out = compiler.disable(function, recursive, **options)
        return kept_out(*args, **kwargs)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]  # what compiled code calls and does not contain
    return call


def _as_it_is(subject: Any, *_: Any, **__: Any) -> Any:
    """For what only says how the compiler, if there is one, may handle a function or a tensor."""
    return subject


class _StandIn(ModuleType):
    """A module of the compiler. For a name that it lacks the compiler is imported."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # what the import system asks of every module
        _remove_stand_ins()
        return getattr(importlib.import_module(self.__name__), name)


def _mask_context() -> Any:
    """A ``TransformGetItemToIndex`` of the compiler."""
    _remove_stand_ins()
    return importlib.import_module(_MASKS).TransformGetItemToIndex()


def _remove_stand_ins() -> None:
    for name in (COMPILER, _MASKS):
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]
