"""``python -m tests.fuzz.sanitized [INPUTS [FROM]]``: the ``native`` fuzzer on functions built with
AddressSanitizer and UndefinedBehaviorSanitizer, in a copy of the packages. ``FROM``: as many inputs are
passed over, so that a long run goes on where it was ended. Needs gcc with its sanitizers, and Linux.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
_INPUTS = 1_000_000
_FLAGS = (
    "-g",
    "-O0",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
)
_PROGRAM = """
import sys
from shared.speedups import native
from tests.fuzz.runner import ROUND_INPUTS, run_round
assert native is not None and native.__file__.startswith(sys.argv[1]), native
first = int(sys.argv[3]) // ROUND_INPUTS
rounds = max(1, int(sys.argv[2]) // ROUND_INPUTS)
for count in range(rounds):
    done = run_round("native", first + count)
    if done.failure is not None:
        sys.exit(done.failure)
    if (count + 1) % 20 == 0:
        print(f"{(first + count + 1) * ROUND_INPUTS:,} inputs so far", file=sys.stderr, flush=True)
print(f"{rounds * ROUND_INPUTS:,} inputs, nothing found by the sanitizers")
"""


def missing() -> str | None:
    """Why it cannot be done here; None when it can."""
    if sys.platform != "linux" or shutil.which("gcc") is None:
        return "gcc on Linux is needed"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "the headers of Python are missing"
    if not all(library.is_absolute() for library in _libraries()):
        return "the libraries of gcc's sanitizers are missing"
    return None


def run(inputs: int, first: int = 0, *, progress: bool = False) -> "subprocess.CompletedProcess[str]":
    """Build and run it for ``inputs`` inputs after the ``first`` ones. A sanitizer's report ends the process
    with an error. With ``progress`` what it writes to its standard error is passed on at once."""
    with tempfile.TemporaryDirectory(prefix="trunkline-sanitized-") as name:
        copy = Path(name)
        leave = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / "shared", copy / "shared", ignore=leave)
        shutil.copytree(ROOT / "tests" / "fuzz", copy / "tests" / "fuzz", ignore=leave)
        (copy / "tests" / "__init__.py").touch()
        shutil.copytree(
            ROOT / "tests" / "shared" / "speedups", copy / "tests" / "shared" / "speedups", ignore=leave
        )
        (copy / "tests" / "shared" / "__init__.py").touch()
        folder = copy / "shared" / "speedups"
        built = folder / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
        include = f"-I{sysconfig.get_path('include')}"
        sources = map(str, sorted(folder.glob("_native*.c")))
        subprocess.run(["gcc", *_FLAGS, "-shared", "-fPIC", include, *sources, "-o", str(built)], check=True)
        environment = {
            **os.environ,
            "LD_PRELOAD": " ".join(map(str, _libraries())),
            "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter's own at its end
            "PYTHONMALLOC": "malloc",  # or a bytes object would have neighbours that may be written
            "PYTHONPATH": str(copy),
            "TRUNKLINE_NATIVE": "1",
        }
        command = [sys.executable, "-c", _PROGRAM, str(copy), str(inputs), str(first)]
        said = None if progress else subprocess.PIPE
        return subprocess.run(
            command, cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=said, text=True, check=False
        )


def _libraries() -> list[Path]:
    return [
        Path(
            subprocess.run(
                ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
            ).stdout.strip()
        )
        for name in ("libasan.so", "libubsan.so")
    ]


def main() -> int:
    problem = missing()
    if problem is not None:
        sys.stdout.write(f"not run: {problem}\n")
        return 1
    inputs, first = (*map(int, sys.argv[1:3]), *(_INPUTS, 0)[len(sys.argv) - 1 :])
    done = run(inputs, first, progress=True)
    sys.stdout.write(done.stdout)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
