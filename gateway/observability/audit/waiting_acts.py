"""Acts that wait for the audit log, looked for only while the database may have some: a gateway under load
writes its log twice a second.
"""

from collections.abc import Callable, Collection

from gateway.observability.audit.acts import AdminActionSource
from gateway.storage.acts import AdminAction

ASKED_AGAIN_S = 60.0
"""After so long the database is asked for acts though nothing says that it has any: one of several gateways
may have claimed some and be gone."""


class WaitingActs:
    """Another :class:`~gateway.observability.audit.acts.AdminActionSource`, which is asked as little as can
    be. Belongs to the thread of a writer."""

    def __init__(self, acts: AdminActionSource, clock: Callable[[], float]) -> None:
        """``clock`` gives seconds and is one that nobody sets."""
        self._acts = acts
        self._clock = clock
        self._version: object = None
        self._none_s: float | None = None
        """When it was found that none wait, at that version; None: it was not."""
        self._signer: bytes | None = None
        """That the database is known to have, at that version; None: it is to be asked."""

    def look_for(self, version: object) -> None:
        """From now on for those of ``version``, which was read before this; None: nobody knows it."""
        if version is None or version != self._version:
            self._version, self._none_s, self._signer = version, None, None

    def pending(self, most: int) -> tuple[AdminAction, ...] | None:
        """The oldest; None while none waited at the latest look. Raises StateError, and looks again then."""
        now_s = self._clock()
        if self._none_s is not None and now_s - self._none_s < ASKED_AGAIN_S:
            return None
        self._signer = None
        found = self._acts.pending(most)
        self._none_s = None if found else now_s
        return found

    def forget(self, ids: Collection[str]) -> None:
        self._acts.forget(ids)

    def signer(self) -> bytes | None:
        if self._signer is None:
            self._signer = self._acts.signer()
        return self._signer

    def note_signer(self, public_key: bytes) -> None:
        self._signer = None
        self._acts.note_signer(public_key)
