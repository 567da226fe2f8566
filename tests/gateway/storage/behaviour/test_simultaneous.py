"""Eight gateways on one store that renew and enrol at the same moment lock no agent out."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from gateway.auth import AgentDirectory
from gateway.domain.store_address import StoreAddress
from gateway.storage import Store
from gateway.storage.postgres import connections
from gateway.storage.sqlite import database
from shared.identity import CERTIFICATE_LIFE_S
from shared.protocol.errors import ErrorCode
from tests.gateway.auth.house import House, rejected

GATEWAYS = 8
PATIENCE_S = 60.0
"""How long the store lets one wait for others here: only who waits for ever is to be found, and a machine
whose disk is busy takes seconds for what eight commit in turn."""
T = TypeVar("T")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    patience_ms = int(PATIENCE_S * 1000)
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", PATIENCE_S)
    for setting in ("lock_timeout", "statement_timeout"):
        monkeypatch.setitem(connections._SETTINGS, setting, patience_ms)
    monkeypatch.setattr(connections.BoundedConnection, "answer_s", PATIENCE_S + 2.0)


@pytest.fixture
def houses(
    patient: None, any_store: Store, state_dir: Path, any_address: StoreAddress | None
) -> Iterator[list[House]]:
    """Each with connections of its own."""
    any_store.identity.keys  # noqa: B018 - makes the gateway's key
    with ExitStack() as stack:
        stores = [stack.enter_context(Store.open(state_dir, address=any_address)) for _ in range(GATEWAYS)]
        yield [House(store, AgentDirectory(store)) for store in stores]


def all_at_once(houses: list[House], act: Callable[[int, House], T]) -> list[T]:
    """What each returns; fails if any raises, or waits for the others as long as the store lets it."""
    found: dict[int, T] = {}
    errors: list[BaseException] = []
    ready = threading.Barrier(len(houses))

    def run(number: int) -> None:
        ready.wait()
        try:
            found[number] = act(number, houses[number])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(houses))]
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert time.monotonic() - began_s < PATIENCE_S
    return [found[number] for number in range(len(houses))]


def test_an_agent_that_all_give_a_certificate_at_once_is_let_in_with_any_of_them(houses: list[House]) -> None:
    _, worn = houses[0].join(houses[0].token())
    for house in houses:
        house.wall_s += 0.9 * CERTIFICATE_LIFE_S
    welcomes = all_at_once(houses, lambda number, house: house.come_back(worn)[1])
    fresh = [welcome.certificate for welcome in welcomes]
    assert len({each.serial for each in fresh if each is not None}) == GATEWAYS
    for number, certificate in enumerate([*fresh, *fresh]):
        assert certificate is not None
        admitted, _ = houses[-1 - number % GATEWAYS].come_back(certificate.der)
        assert admitted.name == "gpu-7"
    houses[3].come_back(worn)


def test_agents_that_join_with_one_token_at_once_are_all_let_in_and_no_more(houses: list[House]) -> None:
    token = houses[0].token(uses=GATEWAYS)
    joined = all_at_once(houses, lambda number, house: house.join(token, f"gpu-{number}"))
    for number, (_, certificate) in enumerate(joined):
        houses[-1 - number].come_back(certificate, f"gpu-{number}")
    with rejected(ErrorCode.UNAUTHENTICATED, f"used up .{GATEWAYS} of {GATEWAYS} uses"):
        houses[0].join(token, "one-more")


def test_agents_that_renew_at_once_each_get_a_certificate(houses: list[House]) -> None:
    token = houses[0].token(uses=GATEWAYS)
    worn = [houses[0].join(token, f"gpu-{number}")[1] for number in range(GATEWAYS)]
    for house in houses:
        house.wall_s += 0.9 * CERTIFICATE_LIFE_S
    renewed = all_at_once(houses, lambda number, house: house.come_back(worn[number], f"gpu-{number}")[1])
    assert all(welcome.certificate is not None for welcome in renewed)
