"""Clients that read, leave and are told of ends; what they got is held against the undisturbed answer."""

from dataclasses import replace

from gateway.dispatch.response import EngineResponse
from gateway.domain.errors import RequestError, StreamBroken
from tests.gateway.dispatch.behaviour.fleet_machine import now_or_never
from tests.gateway.dispatch.behaviour.wayward_engine import BUSY_BODY, MODEL, UNDISTURBED, WHOLE
from tests.gateway.dispatch.recovery.going_on import Seen, seen_in_chat
from tests.gateway.fleet.fleet import Client


class ReadingClients:
    """Every client there was, and what it has read."""

    def __init__(self) -> None:
        self.clients: list[Client] = []
        self._got: dict[int, bytes] = {}
        self._ended: dict[int, Exception | None] = {}
        """By client: None when it was told of an end in order, or what it was told instead."""
        self._gone: set[int] = set()

    @property
    def present(self) -> list[Client]:
        return [each for each in self.clients if id(each) not in self._gone and self._unfinished(each)]

    @property
    def reading(self) -> list[Client]:
        return [each for each in self.present if each.settled]

    def _unfinished(self, client: Client) -> bool:
        if client.outcomes and isinstance(client.outcomes[0], Exception):
            return False
        return id(client) not in self._ended

    def leave(self, client: Client) -> None:
        self._gone.add(id(client))
        if client.outcomes and isinstance(client.outcomes[0], EngineResponse):
            client.response.abort()
        else:
            client.cancel()

    def read(self, client: Client) -> None:
        """What is there now."""
        try:
            chunks = now_or_never(client.response.next_chunks)
        except StreamBroken as broken:
            self._ended[id(client)] = broken
            client.response.abort()
            return
        if chunks == []:
            self._ended[id(client)] = None
            client.response.abort()
        for chunk in chunks or ():
            self._got[id(client)] = self._got.get(id(client), b"") + chunk
            client.response.consumed(len(chunk))

    def check_so_far(self) -> None:
        """What clients have is the answer, as far as it goes."""
        for client in self.clients:
            got = self._got.get(id(client), b"")
            if not got or client.response.status != 200:
                continue
            if not client.request.streaming:
                assert WHOLE.startswith(got)
                continue
            assert got.endswith((b"\n\n", b"\r\n\r\n"))
            seen = seen_in_chat(got)
            assert "".join(MODEL.tokens).startswith(seen.text)
            assert len(seen.ids) <= 1

    def check_ends(self) -> None:
        """Who stayed has the undisturbed answer or was told of an error."""
        for client in self.clients:
            if id(client) in self._gone:
                continue
            assert client.settled
            if isinstance(client.outcomes[0], Exception):
                assert isinstance(client.error, RequestError)
                continue
            error, got = self._ended[id(client)], self._got.get(id(client), b"")
            if error is not None:
                assert isinstance(error, StreamBroken)
            elif client.response.status == 503:
                assert BUSY_BODY.startswith(got)
            elif client.request.streaming:
                assert _of_any_id(got) == UNDISTURBED
            elif client.request.route != "any":
                assert got == WHOLE


def _of_any_id(got: bytes) -> Seen:
    """The answer that was read, with the ids of the undisturbed one in place of the one it has throughout."""
    seen = seen_in_chat(got)
    assert len(seen.ids) == 1, got
    return replace(seen, ids=UNDISTURBED.ids)
