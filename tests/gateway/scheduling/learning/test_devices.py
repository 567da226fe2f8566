"""Classes of devices, by the names that drivers give."""

import pytest

from gateway.scheduling.learning.devices import CLASSES, NAME_CHARS, device_class, figures_of


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA A10", "a10"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA RTX A6000", "rtxa6000"),
        ("h100", "h100"),
        ("NVIDIA H100 80GB HBM3,NVIDIA L4", "l4"),
        ("  AMD Instinct MI300X  ", "amd instinct mi300x"),
        ("", ""),
    ],
)
def test_names_of_devices_are_read(name: str, expected: str) -> None:
    assert device_class(name) == expected


def test_unknown_devices_are_classes_of_their_own_of_typical_figures() -> None:
    assert len(device_class("x" * 1000)) == NAME_CHARS
    assert figures_of(device_class("cpu")) is CLASSES["l40s"]
