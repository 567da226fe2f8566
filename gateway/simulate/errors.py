"""What goes wrong before a simulation starts; messages are fit for the person at the terminal."""


class BadSpec(Exception):
    """What was asked for cannot be simulated; ``option`` says which part of it."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


class BadTrace(BadSpec):
    """A trace that cannot be read, or not from ``line`` (1 is the first; 0 is the file as a whole) on."""

    def __init__(self, name: str, line: int, message: str) -> None:
        super().__init__("--trace", f"{name}, line {line}: {message}" if line else f"{name}: {message}")
        self.line = line
