"""What GPUs the host has and how they are: through NVML, else through torch if it is loaded, else none.

torch is never imported for this: it costs seconds and hundreds of MiB in a process that computes nothing.
Where NVML is absent, GPUs are so only reported by an agent that has torch loaded for another reason.
"""

import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import structlog

from shared.protocol import limits
from shared.protocol.messages import GpuState

log = structlog.get_logger("agent.capacity.device")

Reader = Callable[[], tuple[GpuState, ...]]

NAME_CHARS = 256


def find_reader() -> Reader | None:
    """The best way to read this host's GPUs, or None when there is nothing to read. May take a second."""
    return nvml_reader() or torch_reader()


def nvml_reader() -> Reader | None:
    """None where there is no NVIDIA driver, or none that answers."""
    try:
        pynvml = importlib.import_module("pynvml")
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
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    return GpuState(index, text[:NAME_CHARS], int(memory.total), int(memory.used), utilisation, temperature_c)


def _or_none(read: Callable[[], float]) -> float | None:
    """Some cards (and slices of cards) do not tell everything."""
    try:
        return float(read())
    except Exception:
        return None


def torch_reader() -> Reader | None:
    """None unless torch is loaded in this process and sees a GPU."""
    torch: Any = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_available():
            return None
        count = min(torch.cuda.device_count(), limits.GPUS)
    except Exception:
        return None
    return lambda: tuple(_read_torch(torch, index) for index in range(count))


def _read_torch(torch: Any, index: int) -> GpuState:
    free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    name = str(torch.cuda.get_device_name(index))
    return GpuState(index, name[:NAME_CHARS], int(total_bytes), int(total_bytes - free_bytes))


class GpuSampler:
    """Reads the GPUs now and then in a thread of its own, as a driver may take long or hang.

    ``latest`` is what was read last. The thread is a daemon: one that hangs in a driver keeps nothing alive.
    """

    def __init__(self, interval_s: float, find: Callable[[], Reader | None] = find_reader) -> None:
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
        if read is None:
            return
        failing = False
        while not self._stopped.is_set():
            try:
                self.latest = read()
                failing = False
            except Exception as error:
                self.latest = ()
                if not failing:
                    log.warning("GPUs cannot be read", error=str(error))
                failing = True
            self._stopped.wait(self._interval_s)
