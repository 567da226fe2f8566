"""Looks the hosts of webhooks up, and refuses those with addresses to which nothing may be sent."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from aiohappyeyeballs import AddrInfoType

from gateway.domain.errors import BadRequest
from gateway.domain.webhook_addresses import (
    WebhookRefused,
    WebhookRules,
    WebhookTarget,
    kind_refused,
    read_webhook_url,
)

LOOKUP_S = 5.0
_LOOKUPS_AT_ONCE = 8
_MOST_ADDRESSES = 64

Resolve = Callable[[str, int], Awaitable[Sequence[AddrInfoType]]]
"""The addresses of a host, with a port. Raises OSError."""


class SystemResolver:
    """Asks the operating system, in threads of its own: a slow name server of somebody's holds up nothing
    else of the gateway."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_LOOKUPS_AT_ONCE, "webhook-lookup")

    async def __call__(self, host: str, port: int) -> Sequence[AddrInfoType]:
        """Raises socket.gaierror."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(LOOKUP_S):
                return await loop.run_in_executor(self._threads, _look_up, host, port)
        except TimeoutError:
            raise socket.gaierror(socket.EAI_AGAIN, f"its host was not found within {LOOKUP_S:g} s") from None


class WebhookGuard:
    """Says where a webhook may be sent. What it allows is an address and not a name, so whoever connects to
    just that address is not led elsewhere by another answer of the name server (DNS rebinding)."""

    def __init__(self, rules: WebhookRules, resolve: Resolve | None = None) -> None:
        self.rules = rules
        self._resolve = resolve or SystemResolver()

    async def check(self, url: str) -> None:
        """Raises BadRequest where nothing can be sent to ``url``. A name server that does not answer just now
        is no reason: every attempt checks again."""
        try:
            await self.allowed(read_webhook_url(url, self.rules), url)
        except WebhookRefused as error:
            raise _refused(f"{error}") from None
        except (socket.gaierror, UnicodeError) as error:
            if getattr(error, "errno", None) != socket.EAI_AGAIN:
                raise _refused("its host has no address") from None
        except OSError:
            return

    async def allowed(self, target: WebhookTarget, url: str) -> Sequence[AddrInfoType]:
        """The host's addresses, to connect to. Raises WebhookRefused where one of them is refused, and
        OSError."""
        found = (await self._resolve(target.host, target.port))[:_MOST_ADDRESSES]
        if not found:
            raise WebhookRefused("its host has no address")
        for each in found:
            self.check_address(str(each[4][0]), url)
        return found

    def check_address(self, address: str, url: str) -> None:
        """Raises WebhookRefused where nothing may be sent there."""
        if url == self.rules.own:
            return
        kind = kind_refused(address, self.rules.networks)
        if kind is not None:
            raise WebhookRefused(
                f"its host has an address that is not public ({kind}), where webhooks are not sent "
                "(jobs.webhook_networks)"
            )


def _refused(why: str) -> BadRequest:
    return BadRequest(f"The webhook cannot be used: {why}.", param="webhook", code="webhook_refused")


def _look_up(host: str, port: int) -> Sequence[AddrInfoType]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
