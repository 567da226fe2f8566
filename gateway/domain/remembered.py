"""What a function gave, remembered where it is asked the same again and again."""

from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Remembered(dict[K, V]):
    """``remembered[argument]`` is what ``function`` gives for it, and costs no call the next time.

    For arguments of which the same few come with every request, though clients and engines may write others:
    at ``most`` are remembered, and when there are more it begins anew, so that nobody can fill it with names
    that never come again. What the function raises is raised, and not remembered.
    """

    def __init__(self, function: Callable[[K], V], most: int) -> None:
        super().__init__()
        self._function = function
        self._most = most

    def __missing__(self, argument: K) -> V:
        found = self._function(argument)
        if len(self) >= self._most:
            self.clear()
        self[argument] = found
        return found
