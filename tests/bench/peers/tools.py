"""The compiled engine and load: built once into ``tests/.cache``, and how they are asked."""

import contextlib
import hashlib
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.processes import House, fetch
from tests.support.programs import find

CACHE = Path(__file__).parents[2] / ".cache"
_SOURCES = Path(__file__).parent / "src"
_COMPILE = ("-O2", "-std=gnu11", "-Wall", "-Wextra")
_PATIENCE_S = 60.0


def missing() -> str | None:
    """Why there are no tools; None if they can be had."""
    return None if find("cc") else "no C compiler (cc; on Debian: apt-get install gcc libc6-dev)"


@dataclass(frozen=True, slots=True)
class Tools:
    """Paths of the two programs."""

    engine: Path
    load: Path

    def ask(self, *arguments: str, timeout_s: float = _PATIENCE_S) -> dict[str, Any]:
        """What the load says. Raises RuntimeError with its words when it fails."""
        command = [str(self.load), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()}")
        return dict(json.loads(done.stdout))


@dataclass(frozen=True, slots=True)
class PlainEngine:
    """The compiled engine, running."""

    url: str
    pid: int

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def direct(self, **settings: int) -> None:
        """Change ``interval_us`` or ``step``."""
        fetch(f"{self.url}/_control?" + "&".join(f"{name}={value}" for name, value in settings.items()))


def built() -> Tools:
    """Compile what is not there yet. Raises CalledProcessError with the compiler's words."""
    sources = sorted(_SOURCES.iterdir())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources) + "".join(_COMPILE).encode())
    directory = CACHE / f"bench-{digest.hexdigest()[:16]}"
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("engine", "load"):
        if not (directory / name).exists():
            part = directory / f".{name}"
            _compile([*_COMPILE, "-o", str(part), str(_SOURCES / f"{name}.c"), "-lm"])
            part.rename(directory / name)
    return Tools(directory / "engine", directory / "load")


def _compile(arguments: Sequence[str]) -> None:
    compiler = find("cc")
    assert compiler is not None, "asked without a compiler"
    subprocess.run([compiler, *arguments], check=True)


def start_engine(tools: Tools, house: House, name: str = "plain-engine") -> PlainEngine:
    """Start one on a free port; the house stops it."""
    child = house.children.start(name, "tests.chaos.peer.execute", str(tools.engine), "0")
    return PlainEngine(house.listening(child), child.pid)


def version_of(*command: str) -> str:
    """The first line a program says of itself; empty if it does not."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S)
        lines = (done.stdout or done.stderr).strip().splitlines()
        return lines[0].strip() if lines else ""
    return ""
