"""Who a job belongs to when it runs, long after its client has shown its key."""

from gateway.auth.keys import KeyRing
from gateway.domain.request import Principal


class JobKeys:
    """Implements ``KeyAuthenticator`` for ids of keys, as jobs keep them: never for what clients present."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring

    async def identify(self, presented: str) -> Principal:
        """Whose key has the id ``presented``. Raises Unauthenticated for one that was revoked, has expired or
        is none of this gateway's, and StateError."""
        return await self._ring.identify_id(presented)
