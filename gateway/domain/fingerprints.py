"""By what the beginning of a prompt is known: a chain of fingerprints, one for each whole block.

A fingerprint stands for its block and all before it, so two prompts have equal fingerprints exactly as far as
they are equal in whole blocks.
"""

from hashlib import blake2b

BLOCK_BYTES = 1024
"""Bytes of a prompt that one fingerprint stands for."""

MOST_BLOCKS = 1024
"""Blocks of one prompt that are looked at: a million bytes."""


def fingerprints(prompt: bytes | memoryview, block_bytes: int = BLOCK_BYTES) -> tuple[int, ...]:
    """The chain of ``prompt``'s whole blocks, up to ``MOST_BLOCKS``. Equal in every process."""
    data = memoryview(prompt)
    chain: list[int] = []
    link = b""
    for end in range(block_bytes, min(len(data), MOST_BLOCKS * block_bytes) + 1, block_bytes):
        state = blake2b(link, digest_size=8)
        state.update(data[end - block_bytes : end])
        link = state.digest()
        chain.append(int.from_bytes(link, "little"))
    return tuple(chain)
