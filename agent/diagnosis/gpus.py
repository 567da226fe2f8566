"""NVIDIA's driver and GPUs, as a check."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.capacity.device import memory_bytes
from shared.process.checks import CheckOutcome, failed, passed, skipped, warned

HOT_C = 90
DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/nvidia0")


def gpu_outcome(nvml: Any = None, files: Sequence[str] | None = None) -> CheckOutcome:
    """What NVIDIA's driver says. ``nvml`` stands in for the library's module; one of ``files`` shows that
    there is a driver."""
    there = [path for path in (DRIVER_FILES if files is None else files) if Path(path).exists()]
    try:
        pynvml = importlib.import_module("pynvml") if nvml is None else nvml
        pynvml.nvmlInit()
        version = _text(pynvml.nvmlSystemGetDriverVersion())
        found = [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    except Exception as error:  # whatever a driver's library raises
        if not there:
            return skipped("There is no NVIDIA driver on this host.")
        return failed(
            f"NVIDIA's driver does not answer ({error}).",
            "Run nvidia-smi. After an update of the driver restart the host; in a container give it its GPUs "
            "(--gpus all).",
        )
    if lost := [f"{index} ({each})" for index, each in enumerate(found) if isinstance(each, Exception)]:
        return failed(
            f"NVIDIA's driver {version} answers, and of {len(found)} GPUs these do not: {', '.join(lost)}.",
            "Run nvidia-smi and dmesg: a GPU may have fallen off the bus; then restart the host.",
        )
    gpus = [each for each in found if not isinstance(each, Exception)]
    if not gpus:
        return failed(
            f"NVIDIA's driver {version} answers and has no GPU.",
            "Run nvidia-smi and dmesg: a GPU may have fallen off the bus; in a container use --gpus all.",
        )
    facts = {"driver": version, "gpus": gpus}
    if hot := [each for each in gpus if (each["temperature_c"] or 0) >= HOT_C]:
        return warned(
            f"{len(hot)} of {len(gpus)} GPUs are hot ({max(each['temperature_c'] for each in hot)} °C), "
            "and slow "
            "down.",
            "Look at fans, air and power limits.",
            **facts,
        )
    return passed(f"NVIDIA's driver {version} answers: {', '.join(each['name'] for each in gpus)}.", **facts)


def _gpu(nvml: Any, index: int) -> dict[str, Any] | Exception:
    """Its facts; the error, where it does not answer."""
    try:
        return _facts(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
    except Exception as error:  # whatever a driver's library raises
        return error


def _facts(nvml: Any, handle: Any) -> dict[str, Any]:
    total_bytes, used_bytes = memory_bytes(nvml, handle)
    try:
        temperature_c = int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    except Exception:
        temperature_c = None  # not every card tells it
    return {
        "name": _text(nvml.nvmlDeviceGetName(handle)),
        "memory_bytes": total_bytes,
        "used_bytes": used_bytes,
        "temperature_c": temperature_c,
    }


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
