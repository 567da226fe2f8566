import os
import subprocess
import sys

import pytest

from shared.speedups import NATIVE
from shared.speedups.build import describe_build


def said(**environment: str) -> str:
    command = [sys.executable, "-m", "shared.speedups"]
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
    ("arguments", "flag", "words"),
    [
        ("'--prefix=/x' '--enable-optimizations'", "-fprofile-use", ", optimised build"),
        ("'--prefix=/x'", "-fprofile-use", "without optimisations"),
        pytest.param("'--prefix=/usr'", "", ", optimised build", id="Debian's"),
    ],
)
def test_it_says_whether_the_interpreter_is_optimised(
    arguments: str, flag: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"CONFIG_ARGS": arguments, "PGO_PROF_USE_FLAG": flag}
    monkeypatch.setattr("sysconfig.get_config_var", variables.get)
    assert words in describe_build()


def test_functions_built_from_older_sources_are_not_used() -> None:
    program = (
        "import sys, types; sys.modules['shared.speedups._native'] = types.ModuleType('older');"
        "import shared.speedups as found; print(found.NATIVE, found.BodyPath.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "shared.speedups.body_path"]
