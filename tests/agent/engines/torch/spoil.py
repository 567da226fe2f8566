"""A model whose computation fails when a test wants it to.

Memory does not really run out in these tests: this hook makes the forward pass of a model in the test's own
process raise what torch raises then, for every step that holds a chosen token.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

POISON = 201
"""A token that is in a prompt only when the test puts it there."""


@contextmanager
def spoil(network: Any, error: Callable[[], Exception], *, when: int | None = POISON) -> Iterator[list[int]]:
    """Make steps fail that hold the token ``when``; every step with None. Gives the number of steps
    failed."""
    forward, failed = network.forward, [0]

    def spoilt(*arguments: Any, **inputs: Any) -> Any:
        if when is None or bool((inputs["input_ids"] == when).any()):
            failed[0] += 1
            raise error()
        return forward(*arguments, **inputs)

    network.forward = spoilt
    try:
        yield failed
    finally:
        network.forward = forward
