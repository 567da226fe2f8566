"""Who comes in, by API keys and, where issuers are trusted, by their tokens; and what goes on beside it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import structlog

from gateway.auth.keys import KeyRing
from gateway.domain.oidc import OidcTable
from gateway.domain.request import Principal
from gateway.storage import Store
from gateway.storage.errors import StateError
from gateway.storage.keys import PREFIX

if TYPE_CHECKING:
    from gateway.auth.oidc import KeySource, TokenAuthenticator


USED_TICK_S = 15.0
"""How often it is written down when keys were last used."""

_log = structlog.get_logger(__name__)


class CredentialCheck(Protocol):
    """Who holds what a client presents; :class:`KeyRing` and :class:`Authenticator`."""

    async def identify(self, presented: str) -> Principal: ...


class Clients:
    """Create it on the event loop. ``credentials`` says who clients are; :meth:`run` runs beside."""

    _sources: "Sequence[KeySource]"

    def __init__(
        self,
        issuers: Sequence[OidcTable],
        store: Store,
        clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``clock`` gives seconds of the event loop's clock, ``wall`` Unix time. Raises StateError."""
        self.ring = KeyRing(store, wall)
        self._store = store
        self._sources = []
        self.credentials: CredentialCheck = self.ring
        if issuers:  # imported where there are any: each start waits for every import
            from gateway.auth.oidc import KeySource, TokenAuthenticator

            self._sources = [KeySource(issuer, clock) for issuer in issuers]
            self.credentials = Authenticator(self.ring, TokenAuthenticator(self._sources, wall))

    async def run(self) -> None:
        """Fetch issuers' keys and note the use of ours, until cancelled; then nobody is let in any more."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for source in self._sources:
                    tasks.create_task(source.run())
                tasks.create_task(self._note_use())
        finally:
            self.ring.refresher.close()

    async def _note_use(self) -> None:
        try:
            while True:
                await asyncio.sleep(USED_TICK_S)
                await self.write_use()
        finally:
            await self.write_use()

    async def write_use(self) -> None:
        """Write down when keys were last used. When that fails it is done next time; the log tells of the
        database."""
        used_s = self.ring.take_used()
        if not used_s:
            return
        try:
            await asyncio.to_thread(self._store.keys.touch, used_s)
        except StateError as error:
            _log.debug("last_use_not_written", error=str(error))
            self.ring.put_back_used(used_s)


class Authenticator:
    """Keys by their prefix, everything else as a token."""

    def __init__(self, keys: KeyRing, tokens: "TokenAuthenticator") -> None:
        self._keys = keys
        self._tokens = tokens

    async def identify(self, presented: str) -> Principal:
        """As :meth:`KeyRing.identify` and :meth:`TokenAuthenticator.authenticate`. What was changed in the
        store counts for holders of tokens too."""
        if presented.startswith(PREFIX) or not presented:
            return await self._keys.identify(presented)
        await self._keys.refresher.refresh()
        return self._tokens.authenticate(presented)
