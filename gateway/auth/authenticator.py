"""Who comes in: holders of API keys and, where issuers are trusted, of their tokens."""

from gateway.auth.keys import KeyRing
from gateway.auth.oidc import TokenAuthenticator
from gateway.domain.request import Principal
from gateway.storage.keys import PREFIX


class Authenticator:
    """Keys by their prefix, everything else as a token."""

    def __init__(self, keys: KeyRing, tokens: TokenAuthenticator) -> None:
        self._keys = keys
        self._tokens = tokens

    async def identify(self, presented: str) -> Principal:
        """As :meth:`KeyRing.identify` and :meth:`TokenAuthenticator.authenticate`. What was changed in the
        store counts for holders of tokens too."""
        if presented.startswith(PREFIX) or not presented:
            return await self._keys.identify(presented)
        await self._keys.refresh()
        return self._tokens.authenticate(presented)
