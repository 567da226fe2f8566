"""Whether what an engine or a library says means that memory ran out."""

import pytest

from agent.engines.memory_errors import MESSAGE_BYTES, tells_of_memory

OUT_OF_MEMORY = [
    b"CUDA out of memory. Tried to allocate 2.00 GiB",  # torch
    b"DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
    b"std::bad_alloc",
    b"failed to find a memory slot for batch of size 512",  # llama.cpp
    b'{"error":"model requires more system memory (8.0 GiB) than is available (2.0 GiB)"}',  # Ollama
    b'{"error":{"code":"out_of_memory"}}',  # the built-in engine
]


@pytest.mark.parametrize("text", OUT_OF_MEMORY)
def test_memory_ran_out(text: bytes) -> None:
    assert tells_of_memory(text)
    assert tells_of_memory(text.upper())


@pytest.mark.parametrize("text", [b"", b"Service Unavailable", b"the memory of this conversation is empty"])
def test_something_else(text: bytes) -> None:
    assert not tells_of_memory(text)


def test_only_the_beginning_is_read() -> None:
    assert not tells_of_memory(b"." * MESSAGE_BYTES + OUT_OF_MEMORY[0])
