import os
import subprocess
import sys

import pytest

from shared.process.build import describe_build
from shared.speedups import NATIVE


def said(**environment: str) -> str:
    command = [sys.executable, "-m", "shared.process.build"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_it_says_whether_the_native_functions_are_in_use() -> None:
    assert describe_build().startswith(
        "native speedups in use" if NATIVE else ("no native", "native speedups turned")
    )
    assert said() == f"== {describe_build()}\n"


def test_the_native_functions_can_be_turned_off() -> None:
    assert said(TRUNKLINE_NATIVE="0").startswith("== native speedups turned off by TRUNKLINE_NATIVE=0")


@pytest.mark.parametrize(
    ("optimised", "words"), [(True, "optimised build"), (False, "without optimisations")]
)
def test_it_says_whether_the_interpreter_is_optimised(
    optimised: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.process.build.is_optimised", lambda: optimised)
    assert words in describe_build()


def test_functions_built_from_older_sources_are_not_used() -> None:
    program = (
        "import sys, types; sys.modules['shared.speedups._native'] = types.ModuleType('older');"
        "import shared.speedups as found; print(found.NATIVE, found.BodyPath.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "shared.speedups.body_path"]
