"""What a function gave, remembered where it is asked the same again and again."""

from collections.abc import Callable
from typing import TypeVar

NAME_CHARS = 64
"""Longest name that is remembered."""

K = TypeVar("K", bound=str | bytes)
V = TypeVar("V")


class Remembered(dict[K, V]):
    """``remembered[name]`` is what ``function`` gives for it, and costs no call the next time.

    For names of which the same few come with every request, though clients and engines may write others: at
    ``most`` are remembered, none of them long, and when there are more it begins anew, so that nobody can
    fill it with names that never come again. What the function raises is raised, and not remembered.
    """

    def __init__(self, function: Callable[[K], V], most: int) -> None:
        super().__init__()
        self._function = function
        self._most = most

    def __missing__(self, name: K) -> V:
        found = self._function(name)
        if len(name) <= NAME_CHARS:
            if len(self) >= self._most:
                self.clear()
            self[name] = found
        return found
