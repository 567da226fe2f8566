"""Takes the header fields that a parser of HTTP reads one by one. The reference for its native twin."""

from collections.abc import Callable


class HeaderCollector:
    """Called with the name and the value of each field of a head, in order.

    A field goes to the end of ``fields``, its name in lower case (of ASCII, as :meth:`bytes.lower` has it),
    where it has no more than ``most_bytes`` together and ``fields`` holds fewer than ``most_fields``. Any
    other goes to ``otherwise``, whose errors are raised; all fields do unless ``open``.
    """

    __slots__ = ("_most_bytes", "_most_fields", "_otherwise", "fields", "open")

    def __init__(
        self, otherwise: Callable[[bytes, bytes], object], most_fields: int, most_bytes: int
    ) -> None:
        self._otherwise: Callable[[bytes, bytes], object] | None = otherwise
        self._most_fields = most_fields
        self._most_bytes = most_bytes
        self.fields: list[tuple[bytes, bytes]] = []
        self.open = True

    def __call__(self, name: bytes, value: bytes) -> None:
        fields = self.fields
        if self.open and len(fields) < self._most_fields and len(name) + len(value) <= self._most_bytes:
            fields.append((name.lower(), value))
        elif self._otherwise is not None:
            self._otherwise(name, value)

    def close(self) -> None:
        """Forget ``otherwise``, which may keep the collector: fields that would go there are dropped."""
        self._otherwise = None
