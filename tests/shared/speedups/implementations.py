"""The functions in Python, and their twins in C where they were built."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from shared.speedups import NATIVE, native

compares = pytest.mark.skipif(not NATIVE, reason="the native functions were not built")
"""Marks a test that needs both."""


def each_implementation(python: ModuleType) -> Callable[..., Any]:
    """A fixture that is the module ``python``, and then its twin."""
    modules = [pytest.param(python, id="python")]
    if NATIVE:
        modules.append(pytest.param(native, id="native"))

    @pytest.fixture(scope="module", params=modules)
    def implementation(request: pytest.FixtureRequest) -> ModuleType:
        found: ModuleType = request.param
        return found

    return implementation
