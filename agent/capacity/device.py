"""What GPUs the host has and how they are: through NVML, else none.

torch is never imported for this: it costs seconds and hundreds of MiB in a process that computes nothing.
"""

import importlib
import threading
from collections.abc import Callable
from typing import Any

import structlog

from shared.protocol import limits
from shared.protocol.messages import GpuState

log = structlog.get_logger("agent.capacity.device")

Reader = Callable[[], tuple[GpuState, ...]]

NAME_CHARS = 256


def nvml_reader(nvml: Any = None) -> Reader | None:
    """None where there is no NVIDIA driver, or none that answers. May take a second.

    ``nvml`` stands in for the library's module."""
    try:
        pynvml = importlib.import_module("pynvml") if nvml is None else nvml
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    except Exception:
        return None  # no library, no driver, no permission, or one of another version: no GPUs to report
    if not handles:
        return None
    return lambda: tuple(_read_nvml(pynvml, i, handle) for i, handle in enumerate(handles[: limits.GPUS]))


def _read_nvml(nvml: Any, index: int, handle: Any) -> GpuState:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    name = nvml.nvmlDeviceGetName(handle)
    utilisation = _or_none(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
    temperature_c = _or_none(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    power_w = _or_none(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000)
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    used = int(memory.total), int(memory.used)
    return GpuState(index, text[:NAME_CHARS], *used, utilisation, temperature_c, power_w)


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

    def __init__(self, interval_s: float, find: Callable[[], Reader | None] = nvml_reader) -> None:
        self.latest: tuple[GpuState, ...] = ()
        self._interval_s = interval_s
        self._find = find
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu facts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the sampling; does not wait for a driver that hangs."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            read = self._find()
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
