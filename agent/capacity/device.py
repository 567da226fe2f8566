"""What GPUs the host has and how they are: through NVML, else none.

torch is never imported for this: it costs seconds and hundreds of MiB in a process that computes nothing.
"""

import importlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from shared.protocol import limits
from shared.protocol.messages import GpuState

log = structlog.get_logger("agent.capacity.device")

Reader = Callable[[], tuple[GpuState, ...]]

NAME_CHARS = 256

FIND_S = 60.0
"""How often a driver is looked for where there is none: a host may load it after it has started the agent."""


def nvml_reader(nvml: Any = None) -> Reader | None:
    """None where there is no NVIDIA driver, or none that answers. May take a second.

    ``nvml`` stands in for the library's module."""
    try:
        pynvml = importlib.import_module("pynvml") if nvml is None else nvml
        pynvml.nvmlInit()
        handles = [_handle(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    except Exception:
        return None  # no library, no driver, no permission, or one of another version: no GPUs to report
    if not handles:
        return None
    return _NvmlReader(pynvml, handles[: limits.GPUS]).read


class _NvmlReader:
    """Reads the GPUs that answer, and logs once of each that does not: one that has fallen off the bus says
    nothing of the others."""

    def __init__(self, nvml: Any, handles: Sequence[Any]) -> None:
        """A handle that could not be had is the error instead."""
        self._nvml = nvml
        self._handles = handles
        self._silent: set[int] = set()

    def read(self) -> tuple[GpuState, ...]:
        """Raises what the driver's library does where no GPU answers."""
        found, errors = [], list[Exception]()
        for index, handle in enumerate(self._handles):
            try:
                if isinstance(handle, Exception):
                    raise handle
                found.append(_read_nvml(self._nvml, index, handle))
            except Exception as error:
                errors.append(error)
                if index not in self._silent and len(self._handles) > 1:
                    log.warning("a GPU cannot be read", index=index, error=str(error))
                self._silent.add(index)
            else:
                self._silent.discard(index)
        if not found:
            raise errors[0]
        return tuple(found)


def _handle(nvml: Any, index: int) -> Any:
    """The error, where it cannot be had."""
    try:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    except Exception as error:
        return error


def memory_bytes(nvml: Any, handle: Any) -> tuple[int, int]:
    """All, and what is used, in bytes. 0 of a GPU that has none of its own but shares the host's."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except getattr(nvml, "NVMLError_NotSupported", ()):
        return 0, 0
    return int(memory.total), int(memory.used)


def _read_nvml(nvml: Any, index: int, handle: Any) -> GpuState:
    memory = memory_bytes(nvml, handle)
    name = nvml.nvmlDeviceGetName(handle)
    utilisation = _or_none(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
    temperature_c = _or_none(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    power_w = _or_none(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000)
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    return GpuState(index, text[:NAME_CHARS], *memory, utilisation, temperature_c, power_w)


def _or_none(read: Callable[[], float]) -> float | None:
    """Some cards (and slices of cards) do not tell everything."""
    try:
        return float(read())
    except Exception:
        return None


class GpuSampler:
    """Reads the GPUs now and then in a thread of its own, as a driver may take long or hang.

    ``latest`` is what was read last. The thread is a daemon: one that hangs in a driver keeps nothing alive.
    """

    def __init__(
        self, interval_s: float, find: Callable[[], Reader | None] = nvml_reader, retry_s: float = FIND_S
    ) -> None:
        """``retry_s``: how often ``find`` is called until it finds something."""
        self.latest: tuple[GpuState, ...] = ()
        self._interval_s = interval_s
        self._find = find
        self._retry_s = retry_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu facts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the sampling; does not wait for a driver that hangs."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            read = self._found()
        except Exception:
            log.exception("GPUs cannot be read")
            return
        failing = False
        while read is not None and not self._stopped.is_set():
            try:
                self.latest = read()
                failing = False
            except Exception as error:
                self.latest = ()
                if not failing:
                    log.warning("GPUs cannot be read", error=str(error))
                failing = True
            self._stopped.wait(self._interval_s)

    def _found(self) -> Reader | None:
        """Waits until there is a driver. None: sampling has ended before."""
        while not self._stopped.is_set():
            if (read := self._find()) is not None:
                return read
            self._stopped.wait(self._retry_s)
        return None
