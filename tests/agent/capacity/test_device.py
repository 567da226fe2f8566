"""GPU facts: read where they can be, absent where not, and never a failure."""

import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from agent.capacity.device import GpuSampler, Reader, nvml_reader
from shared.protocol.messages import GpuState

GPU = GpuState(0, "NVIDIA H200", 100, 40, 0.75, 61.0, 412.5)


def fake_nvml(**changes: Any) -> SimpleNamespace:
    parts: dict[str, Any] = {
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=100, used=40),
        "nvmlDeviceGetName": lambda handle: "NVIDIA H200",
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=75),
        "nvmlDeviceGetTemperature": lambda handle, kind: 61,
        "nvmlDeviceGetPowerUsage": lambda handle: 412_500,
    }
    return SimpleNamespace(**{**parts, **changes})


def fails(*args: object) -> Any:
    raise RuntimeError("not supported")


def read(nvml: object) -> tuple[GpuState, ...] | None:
    reader = nvml_reader(nvml)
    return None if reader is None else reader()


def test_nvml_tells_memory_use_temperature_and_power() -> None:
    assert read(fake_nvml()) == (GPU,)
    assert read(fake_nvml(nvmlDeviceGetName=lambda handle: b"NVIDIA H200")) == (GPU,)


def test_what_a_card_does_not_tell_is_left_out() -> None:
    silent = ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage")
    assert read(fake_nvml(**dict.fromkeys(silent, fails))) == (GpuState(0, "NVIDIA H200", 100, 40),)


def test_without_a_driver_there_are_no_gpus() -> None:
    assert read(fake_nvml(nvmlInit=fails)) is None
    assert read(fake_nvml(nvmlDeviceGetCount=lambda: 0)) is None


def test_without_the_library_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml_reader() is None


def sample(find: Callable[[], Reader | None]) -> GpuSampler:
    sampler = GpuSampler(3600.0, find)
    sampler.start()
    return sampler


def test_the_sampler_reads_in_a_thread_of_its_own() -> None:
    threads: list[str] = []
    done = threading.Event()

    def reader() -> tuple[GpuState, ...]:
        threads.append(threading.current_thread().name)
        done.set()
        return (GPU,)

    sampler = sample(lambda: reader)
    assert done.wait(10)
    sampler.stop()
    sampler._thread.join(10)
    assert (sampler.latest, threads) == ((GPU,), ["gpu facts"])


@pytest.mark.parametrize("find", [fails, lambda: None, lambda: fails])
def test_a_driver_that_fails_leaves_no_gpus_and_no_error(find: Callable[[], Reader | None]) -> None:
    sampler = sample(find)
    sampler.stop()
    sampler._thread.join(10)
    assert sampler.latest == ()


class NotSupportedError(Exception):
    """As NVIDIA's library has it."""


def test_a_gpu_that_shares_the_hosts_memory_is_reported_without_any() -> None:
    def none_of_its_own(handle: int) -> Any:
        raise NotSupportedError

    nvml = fake_nvml(nvmlDeviceGetMemoryInfo=none_of_its_own, NVMLError_NotSupported=NotSupportedError)
    assert read(nvml) == (GpuState(0, "NVIDIA H200", 0, 0, 0.75, 61.0, 412.5),)


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMemoryInfo"])
def test_a_gpu_that_is_lost_does_not_hide_the_others_and_is_told_once(call: str) -> None:
    def answer(index: int) -> Any:
        if index == 1:
            raise RuntimeError("GPU is lost")
        return getattr(fake_nvml(), call)(index)

    reader = nvml_reader(fake_nvml(**{"nvmlDeviceGetCount": lambda: 3, call: answer}))
    assert reader is not None
    with structlog.testing.capture_logs() as logs:
        assert [[gpu.index for gpu in reader()] for _ in range(3)] == [[0, 2]] * 3
    assert [(entry["event"], entry["index"], entry["error"]) for entry in logs] == [
        ("a GPU cannot be read", 1, "GPU is lost")
    ]


def test_gpus_are_found_when_their_driver_is_loaded_after_the_agents_start() -> None:
    done = threading.Event()
    tries: list[Reader | None] = [None, None, lambda: (GPU,)]

    def find() -> Reader | None:
        if len(tries) == 1:
            done.set()
        return tries.pop(0)

    sampler = GpuSampler(0.001, find, retry_s=0.0)
    sampler.start()
    assert done.wait(10)
    while not sampler.latest and sampler._thread.is_alive():
        sampler._thread.join(0.001)
    sampler.stop()
    sampler._thread.join(10)
    assert sampler.latest == (GPU,)
