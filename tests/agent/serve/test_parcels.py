"""Objects on their way between processes."""

import os
from pathlib import Path
from typing import Any

import pytest

from agent.serve import parcels
from agent.serve.parcels import Parcel, ParcelWriter, remove_unannounced


@pytest.fixture
def writer(tmp_path: Path) -> ParcelWriter:
    return ParcelWriter(tmp_path, "p1")


def test_a_small_object_goes_inside_its_message(writer: ParcelWriter, tmp_path: Path) -> None:
    parcel = writer.pack({"a": [1, b"x"]})
    assert parcel.file == ""
    assert parcel.unpack() == {"a": [1, b"x"]}
    assert list(tmp_path.iterdir()) == []


def test_large_bytes_go_through_a_file_that_can_be_read_more_than_once(
    writer: ParcelWriter, tmp_path: Path
) -> None:
    value = {"body": os.urandom(300_000)}
    parcel = writer.pack(value)
    assert parcel.data == b""
    assert parcel.unpack() == parcel.unpack() == value
    assert [path.name for path in tmp_path.iterdir()] == ["p1-1"]
    os.unlink(parcel.file)
    with pytest.raises(FileNotFoundError):
        parcel.unpack()


@pytest.mark.parametrize("size", [10, 5_000, 100_000])
def test_arrays_keep_their_values_and_may_be_written_to(writer: ParcelWriter, size: int) -> None:
    numpy = pytest.importorskip("numpy")
    value = numpy.arange(size, dtype="float32").reshape(5, -1)
    found, words = writer.pack((value, "words")).unpack()
    assert (found == value).all()
    assert words == "words"
    found[0, 0] = 7.0
    assert value[0, 0] == 0.0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "uint8"])
@pytest.mark.parametrize("shape", [(), (3,), (300, 400)])
def test_tensors_keep_their_values(writer: ParcelWriter, dtype: str, shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    value = torch.ones(shape).mul(3).to(getattr(torch, dtype))
    found = writer.pack([value]).unpack()[0]
    assert found.dtype == value.dtype
    assert found.shape == value.shape
    assert torch.equal(found, value)
    found.zero_()


def test_a_transposed_tensor_and_one_with_a_gradient_are_passed_by_value(writer: ParcelWriter) -> None:
    torch = pytest.importorskip("torch")
    value = torch.arange(6.0).reshape(2, 3).t().requires_grad_()
    found = writer.pack(value).unpack()
    assert torch.equal(found, value)
    assert not found.requires_grad


def test_the_buffers_of_a_parcel_are_aligned(writer: ParcelWriter) -> None:
    parcel = writer.of_parts([b"abc", b"", b"x" * 65])
    assert parcel.sizes == (3, 0, 65)
    assert [bytes(part) for part in parcel.parts()] == [b"abc", b"", b"x" * 65]
    assert parcel.size_bytes == 64 + 128


def test_a_full_memory_file_system_is_no_error(
    writer: ParcelWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        (tmp_path / "p1-1").touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parcels, "_write", full)
    parcel = writer.pack(b"x" * 100_000)
    assert parcel.unpack() == b"x" * 100_000
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_pickled_is_an_error_and_leaves_nothing(writer: ParcelWriter, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="pickle"):
        writer.pack([b"x" * 100_000, lambda: 1])
    assert list(tmp_path.iterdir()) == []


def test_what_an_ended_process_never_announced_is_removed(writer: ParcelWriter, tmp_path: Path) -> None:
    announced, unannounced = writer.pack(b"a" * 50_000), writer.pack(b"b" * 50_000)
    other = ParcelWriter(tmp_path, "p11").pack(b"c" * 50_000)
    remove_unannounced(tmp_path, "p1", lambda file: file == announced.file)
    assert os.path.exists(announced.file)
    assert not os.path.exists(unannounced.file)
    assert other.unpack() == b"c" * 50_000


def test_a_parcel_of_no_bytes_has_one_empty_part() -> None:
    assert [bytes(part) for part in Parcel((0,)).parts()] == [b""]
