"""Requests of commands that are made again where their answer was lost: the gateway was started again, or the
worker that had them died. What makes something has an idempotency key then, so that it is made once."""

import secrets
import time
from collections.abc import Callable, Collection
from typing import TypeVar

from gateway.cli_support.console import note
from gateway.cli_support.gateway_client import GatewayFailed, Unanswered

T = TypeVar("T")

PATIENCE_S = 120.0
"""A gateway that was there before may be away so long."""
AGAIN_S = 1.0
MOST_BROKEN = 4
"""Where nothing has answered before, so many connections may break off: then no gateway is there."""

AWAY = (502, 503, 504)
"""Statuses of a gateway that is away, or of the proxy before it."""


def new_idempotency_key() -> str:
    """For a request that makes something, and for it when it is made again."""
    return f"trunkline-{secrets.token_hex(12)}"


def answered(ask: Callable[[], T], *, reached: bool = False, away: Collection[int] = AWAY) -> T:
    """What ``ask`` returns. It is called again where its connection broke off; and from then on, or with
    ``reached``, while nobody takes the connection or the status is one of ``away``. ``reached``: the gateway
    has answered before, so the address is right.

    Raises GatewayFailed, as ``ask`` does. It is :attr:`Unanswered.BROKEN_OFF` where any of the requests broke
    off, so that it may have been carried out.
    """
    began_s, broken = time.monotonic(), 0
    while True:
        try:
            return ask()
        except GatewayFailed as error:
            broken += error.unanswered is Unanswered.BROKEN_OFF
            passing = error.unanswered is not None or error.status in away
            tired = time.monotonic() - began_s > PATIENCE_S or (not reached and broken >= MOST_BROKEN)
            if not (passing and (reached or broken)) or tired:
                lost = Unanswered.BROKEN_OFF if broken else error.unanswered
                raise GatewayFailed(str(error), error.status, lost) from error
            if broken == 1 and error.unanswered is Unanswered.BROKEN_OFF:
                note("the connection to the gateway broke off before an answer came; asking again")
            time.sleep(AGAIN_S)
