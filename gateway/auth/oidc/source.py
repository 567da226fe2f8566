"""One issuer's keys, fetched beside the requests and kept: when they are old, and when a token names another.

What was fetched last is used while the issuer cannot be reached, within bounds: an issuer that is away takes
nobody out, and one that an attacker keeps away does not keep a withdrawn key alive for ever.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import structlog

from gateway.auth.oidc.fetch import Fetched, FetchFailed, fetch
from gateway.auth.oidc.keyset import BadKeySet, KeySet, read_keyset
from gateway.domain.oidc import OidcTable
from gateway.domain.urls import BadUrl, check_url, is_own

UNKNOWN_GAP_S = 30.0
"""Unknown key ids make us fetch once in so long at most, whoever makes them up."""

LEAST_AGE_S = 60.0
MOST_AGE_S = 86_400.0
"""Bounds of what an issuer says about how long its keys keep."""

RETRY_S = (2.0, 60.0)
"""After a failure: at first, and at most; twice as long each time."""

Fetch = Callable[[str, Path | None], Awaitable[Fetched]]

_log = structlog.get_logger(__name__)


class KeySource:
    """Belongs to the event loop's thread."""

    def __init__(self, issuer: OidcTable, clock: Callable[[], float], get: Fetch = fetch) -> None:
        """``clock`` gives seconds of the event loop's clock."""
        self.issuer = issuer
        self._clock = clock
        self._get = get
        self.keys: KeySet | None = None
        """To verify with, while there are any; the same object for as long as they are the same keys."""
        self._fetched_s = self._looked_s = float("-inf")
        self._failures = 0
        self.key_unknown = asyncio.Event()
        """Set when a token names a key that is not known: newer keys are then looked for."""

    async def run(self) -> None:
        """Fetch at once and whenever it is due, until cancelled. Failures are logged, not raised."""
        while True:
            wait_s = await self.refresh()
            try:
                async with asyncio.timeout(wait_s):
                    await self.key_unknown.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(min(self._looked_s + UNKNOWN_GAP_S - self._clock(), wait_s))
            self._looked_s = self._clock()

    async def refresh(self) -> float:
        """Fetch the keys now; how long to wait until the next time."""
        self.key_unknown.clear()
        try:
            fetched = await self._get(await self._jwks_url(), self.issuer.ca_file)
            keys = read_keyset(fetched.body, self.issuer.algorithms)
        except (FetchFailed, BadKeySet, BadUrl) as error:
            return self._failed(str(error))
        except Exception:  # whatever an issuer may send, it must not end this gateway
            _log.exception("issuer_fetch_failed", issuer=self.issuer.issuer)
            return self._failed("a fault of this gateway's")
        if self._failures:
            _log.info("issuer_back", issuer=self.issuer.issuer)
        self._failures = 0
        self._fetched_s = self._clock()
        self._take(keys)
        age_s = self.issuer.refresh_s if fetched.max_age_s is None else fetched.max_age_s
        return min(max(age_s, LEAST_AGE_S), MOST_AGE_S)

    async def _jwks_url(self) -> str:
        """Raises FetchFailed and BadUrl."""
        if self.issuer.jwks_url is not None:
            return self.issuer.jwks_url
        name = self.issuer.issuer
        fetched = await self._get(discovery_url(name), self.issuer.ca_file)
        try:
            document = orjson.loads(fetched.body)
        except orjson.JSONDecodeError:
            document = None
        url = document.get("jwks_uri") if isinstance(document, dict) else None
        if not isinstance(url, str):
            raise FetchFailed("its discovery document does not say where its keys are")
        if document.get("issuer") != name:
            raise FetchFailed("its discovery document is another issuer's")
        here = is_own(urlsplit(name).hostname or "")
        if is_own(check_url(url).hostname or "") and not here:
            raise FetchFailed("its discovery document leads to this machine itself")
        return url

    def _take(self, keys: KeySet) -> None:
        if self.keys is None or keys.fingerprint != self.keys.fingerprint:
            self.keys = keys
            _log.info("issuer_keys", issuer=self.issuer.issuer, keys=len(keys.keys))

    def _failed(self, reason: str) -> float:
        if not self._failures:
            _log.warning("issuer_away", issuer=self.issuer.issuer, reason=reason)
        self._failures += 1
        wait_s = min(RETRY_S[0] * 2.0 ** min(self._failures - 1, 10), RETRY_S[1])
        if self.keys is None:
            return wait_s
        left_s = self._fetched_s + self.issuer.stale_s - self._clock()
        if left_s > 0:
            return min(wait_s, max(left_s, RETRY_S[0]))
        self.keys = None
        _log.error("issuer_keys_too_old", issuer=self.issuer.issuer, stale_s=self.issuer.stale_s)
        return wait_s


def discovery_url(issuer: str) -> str:
    """Where an issuer's discovery document is (OpenID Connect Discovery 1.0 §4)."""
    return issuer.removesuffix("/") + "/.well-known/openid-configuration"
