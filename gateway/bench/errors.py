"""What goes wrong in a bench; messages are fit for the person at the terminal."""


class BadPlan(Exception):
    """What was asked for cannot be done; ``option`` says which part of it."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


class TargetUnusable(Exception):
    """The endpoint does not answer as one must before a load makes sense."""


class RequestFailed(Exception):
    """One request failed. ``kind`` is one of few, for counting; the message may hold what the server said."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
