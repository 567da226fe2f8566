"""Why an answer cannot go on at another engine. Both reasons are fit for the client to read."""


class NotContinuable(Exception):
    """The answer so far, or what was asked for, does not let another engine go on with it soundly."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SpliceFailed(Exception):
    """What the next engine sent cannot be joined to the answer soundly."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
