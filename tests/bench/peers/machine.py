"""The machine: what it is, and who runs on which of its cores."""

import contextlib
import os
import platform
import re
import resource
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench.figures import cpu_s


@dataclass(frozen=True, slots=True)
class Cores:
    """Who runs where; the same core for all when there is only one."""

    peers: int
    load: int
    far: int
    """What of a tunnel runs at its far end: the agent, the client of SSH."""


def cores(*, gateway_apart: bool = False) -> Cores:
    """Two of those this process may use. The far end of a tunnel is on the core of its near end, or with
    ``gateway_apart`` on that of engine and load; where there are three, it then has one to itself."""
    usable = sorted(os.sched_getaffinity(0))
    peers, load = usable[0], usable[1 % len(usable)]
    apart = usable[2] if len(usable) > 2 else load
    return Cores(peers, load, apart if gateway_apart else peers)


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """What is started meanwhile stays on that core, with all its children."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def family(pid: int) -> list[int]:
    """A process, its children, theirs, and so on."""
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in path.read_text().split():
                found += family(int(child))
    return found


def forget_peak(pid: int) -> None:
    """Have the peak of its resident memory (VmHWM) begin anew."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU time so far, of the whole machine and of some processes on it."""

    busy_s: float
    """Of all cores, idle time aside; what the hypervisor kept for others counts as busy."""
    ours_s: float
    """Of the processes asked about, and of this one's children that have ended."""
    at_s: float

    def others_cores(self, before: "Usage") -> float:
        """How many cores were busy with something else since ``before``."""
        others_s = (self.busy_s - before.busy_s) - (self.ours_s - before.ours_s)
        return max(0.0, others_s) / (self.at_s - before.at_s)


def usage(pids: Iterable[int]) -> Usage:
    """Now."""
    fields = Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
    ticks = [int(field) for field in fields]
    busy = sum(ticks) - ticks[3] - ticks[4]
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    ours_s = sum(map(cpu_s, pids)) + ended.ru_utime + ended.ru_stime
    return Usage(busy / os.sysconf("SC_CLK_TCK"), ours_s, time.monotonic())


@dataclass(frozen=True, slots=True)
class Facts:
    """What a reader must know to judge figures."""

    cpu: str
    cores: int
    memory_bytes: int
    system: str
    kernel: str
    python: str

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        memory = f"{self.memory_bytes / 2**30:.0f} GiB"
        machine = f"{self.cpu}, {self.cores} cores, {memory}"
        return f"{machine}, {self.system}, Linux {self.kernel}, Python {self.python}"


def facts() -> Facts:
    model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    system = "Linux"
    with contextlib.suppress(OSError):
        system = platform.freedesktop_os_release().get("PRETTY_NAME", system)
    return Facts(
        cpu=model[1] if model else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        system=system,
        kernel=platform.release(),
        python=platform.python_version(),
    )
