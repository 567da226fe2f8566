"""What processes with one store tell each other of jobs, where the database passes it on.

Nobody relies on it: whoever hears nothing looks into the store a little later.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class JobEvent(Enum):
    """What there is to tell."""

    QUEUED = "queued"
    """Jobs wait to be run."""
    CANCELLED = "cancelled"
    """A job that runs is to end."""
    GROUP_CANCELLED = "group-cancelled"
    """All jobs of a group that run are to end."""


@dataclass(frozen=True, slots=True)
class JobNotice:
    """One of them, as a transaction that was committed has it."""

    event: JobEvent
    name: str = ""
    """The id of the job or of the group."""

    @property
    def text(self) -> str:
        """As it is passed on."""
        return f"{self.event.value} {self.name}"

    @classmethod
    def read(cls, text: str) -> "JobNotice | None":
        """None: a later version tells what this one does not know."""
        event, _, name = text.partition(" ")
        known = {each.value: each for each in JobEvent}
        return cls(known[event], name) if event in known else None


class JobNoticeBoard:
    """Passes on what is heard from the database. :meth:`post` belongs to one thread."""

    def __init__(self) -> None:
        self._hear: Callable[[JobNotice], None] | None = None

    def listen(self, hear: Callable[[JobNotice], None] | None) -> None:
        """From now on ``hear`` is called, in a thread of the database's; None: nobody is. It raises
        nothing."""
        self._hear = hear

    def post(self, text: str) -> None:
        """The database has passed this on."""
        hear, notice = self._hear, JobNotice.read(text)
        if hear is not None and notice is not None:
            hear(notice)
