"""Errors as clients see them."""

import errno

import pytest
import torch

from agent.engines.torch.errors import (
    ComputationFailed,
    InvalidRequest,
    OutOfMemory,
    is_out_of_memory,
    request_error,
    retry_headers,
)
from shared.process.request_errors import QueueFull


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you "
            "tried to allocate 9000000000000 bytes. Error code 12 (Cannot allocate memory)"
        ),
        RuntimeError("unable to mmap 123 bytes from file <f>: Cannot allocate memory (12)"),
        RuntimeError("not enough memory: you tried to allocate 5 bytes"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_memory_that_ran_out_is_known_in_all_its_forms(error: Exception) -> None:
    assert is_out_of_memory(error)
    assert isinstance(request_error(error), OutOfMemory)
    assert request_error(error).status == 503


def test_torchs_own_cpu_allocator_is_understood() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50)
    assert is_out_of_memory(caught.value)


def test_other_errors_tell_the_client_nothing_of_the_inside() -> None:
    error = request_error(IndexError("tensor at /secret/place"))
    assert isinstance(error, ComputationFailed)
    assert "secret" not in error.message


def test_a_request_error_stays_what_it_is() -> None:
    error = InvalidRequest("no", param="n")
    assert request_error(error) is error
    assert error.openai_body() == {
        "error": {"message": "no", "type": "invalid_request_error", "param": "n", "code": "invalid_value"}
    }


def test_a_time_to_come_back_goes_into_both_headers() -> None:
    assert retry_headers(QueueFull("full", retry_after_s=1.5)) == {
        "retry-after": "2",
        "retry-after-ms": "1500",
    }
    assert retry_headers(QueueFull("full")) == {}
