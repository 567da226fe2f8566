"""What can go wrong in a quickstart; the message is fit for the person at the terminal."""


class QuickstartFailed(Exception):
    """It cannot go on."""


class ProcessEnded(QuickstartFailed):
    """The gateway or the agent ended by itself, or never became ready."""


class WrongAnswer(QuickstartFailed):
    """An answer came, and it is not what it should be."""
