"""What is said of NVIDIA's driver and of GPUs."""

from types import SimpleNamespace
from typing import Any

import pytest

from agent.diagnosis.gpus import gpu_outcome
from shared.process.checks import CheckState


class Nvml:
    """Stands in for NVIDIA's library."""

    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *temperatures_c: int) -> None:
        self._temperatures_c = temperatures_c

    def nvmlInit(self) -> None: ...  # noqa: N802

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"580.1"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self._temperatures_c)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return "H200"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(total=100, used=10)

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        return self._temperatures_c[handle]


@pytest.mark.parametrize(
    ("temperatures_c", "state", "words"),
    [
        ((40, 50), CheckState.OK, "580.1 answers: H200, H200"),
        ((40, 95), CheckState.WARNING, "1 of 2 GPUs are hot (95 °C)"),
        ((), CheckState.FAILED, "has no GPU"),
    ],
)
def test_gpus_are_told(temperatures_c: tuple[int, ...], state: CheckState, words: str) -> None:
    found = gpu_outcome(Nvml(*temperatures_c), files=())
    assert found.state is state
    assert words in found.words


def test_a_host_without_a_driver_is_no_failure() -> None:
    assert gpu_outcome(SimpleNamespace(), files=()).state is CheckState.SKIPPED


def test_a_driver_that_does_not_answer_is_a_failure() -> None:
    found = gpu_outcome(SimpleNamespace(), files=("/dev/null",))
    assert found.state is CheckState.FAILED
    assert "nvidia-smi" in found.remedy


class NotSupportedError(Exception):
    """As NVIDIA's library has it."""


def test_a_gpu_that_is_lost_is_named_and_the_driver_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(40, 50)

    def handle(index: int) -> int:
        if index == 1:
            raise RuntimeError("GPU is lost")
        return index

    monkeypatch.setattr(nvml, "nvmlDeviceGetHandleByIndex", handle)
    found = gpu_outcome(nvml, files=("/dev/null",))
    assert found.state is CheckState.FAILED
    assert found.words == "NVIDIA's driver 580.1 answers, and of 2 GPUs these do not: 1 (GPU is lost)."
    assert "dmesg" in found.remedy


def test_a_gpu_that_shares_the_hosts_memory_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_of_its_own(handle: int) -> Any:
        raise NotSupportedError

    nvml = Nvml(40)
    monkeypatch.setattr(nvml, "nvmlDeviceGetMemoryInfo", none_of_its_own)
    monkeypatch.setattr(nvml, "NVMLError_NotSupported", NotSupportedError, raising=False)
    found = gpu_outcome(nvml, files=())
    assert (found.state, found.facts["gpus"][0]["memory_bytes"]) == (CheckState.OK, 0)
