"""What clients say of webhooks: who wants to hear of the end of a job, and whether that can be told."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from gateway.domain.errors import BadRequest
from gateway.domain.webhooks import Delivery
from gateway.jobs.webhooks.guard import WebhookGuard
from gateway.storage.webhooks.secrets import OPERATOR, WebhookSecretStore

AcceptWebhook = Callable[[object, str], Awaitable[str | None]]
""":meth:`WebhookService.accept`, of what a client says and its tenant."""


class WebhookService:
    """Belongs to the event loop's thread."""

    def __init__(self, guard: WebhookGuard, secrets: WebhookSecretStore) -> None:
        self._guard = guard
        self._secrets = secrets

    async def accept(self, value: object, tenant: str) -> str | None:
        """The URL of the webhook that a client gives to a job or a batch as ``value``, a text or ``{url}``;
        None gives it the gateway's own, where there is one. Nobody is told where the answer is None.

        Raises BadRequest where nothing can be sent there, and StateError.
        """
        if value is None:
            return self._guard.rules.own
        url = read_webhook(value)
        await self.check(url, tenant)
        return url

    async def check(self, url: str, tenant: str) -> None:
        """Raises BadRequest where nothing can be sent to ``url``, or nothing signed for the tenant, and
        StateError."""
        await self._guard.check(url)
        owner = self._owner(url, tenant)
        if not await asyncio.to_thread(self._secrets.signable, owner):
            raise BadRequest(
                "The webhook cannot be used: this tenant has no secret to sign it with. The gateway's "
                "operator makes one with: trunkline webhook secret create TENANT.",
                param="webhook",
                code="webhook_refused",
            )

    def signers(self, delivery: Delivery, at_s: float) -> tuple[str, ...]:
        """The secrets that sign a delivery. Waits for the disk. Raises StateError."""
        event = delivery.event
        return self._secrets.signers(self._owner(event.url, event.tenant), at_s)

    def _owner(self, url: str, tenant: str) -> str:
        """Whose secret signs: what goes to the operator's own webhook is signed with the operator's."""
        return OPERATOR if url == self._guard.rules.own else tenant


def read_webhook(value: object) -> str:
    """The URL in what a client gives as a webhook. Raises BadRequest."""
    url = value
    if isinstance(value, Mapping):
        url = value.get("url") if len(value) == 1 else None
    if not isinstance(url, str) or not url:
        raise BadRequest(
            "A webhook is a URL, or an object with its 'url' and nothing else.",
            param="webhook",
            code="webhook_refused",
        )
    return url
