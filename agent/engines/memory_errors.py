"""What an engine or a library says when memory ran out. Pure."""

_OUT_OF_MEMORY = (
    b"out of memory",  # torch: "CUDA out of memory. Tried to allocate …"; ggml: "cudaMalloc failed: …"
    b"outofmemory",  # torch.OutOfMemoryError, by its name
    b"out_of_memory",  # the built-in engine's code
    b"not enough memory",  # torch's allocator on a CPU
    b"can't allocate memory",
    b"cannot allocate memory",  # ENOMEM
    b"unable to mmap",
    b"bad_alloc",  # C++
    b"failed to allocate",  # llama.cpp: "failed to allocate … buffer"
    b"memory slot",  # llama.cpp: "failed to find a memory slot for batch"
    b"free space in the kv cache",  # llama.cpp, ggml-org/llama.cpp#4185
    b"could not find a kv cache slot",  # Ollama, ollama/ollama#10127
    b"requires more system memory",  # Ollama: "model requires more system memory (…) than is available"
)

MESSAGE_BYTES = 4096
"""How many bytes of an error's body are looked at."""


def tells_of_memory(text: bytes) -> bool:
    """Whether ``text``, an error's message, says that memory ran out."""
    text = text[:MESSAGE_BYTES].lower()
    return any(words in text for words in _OUT_OF_MEMORY)
