"""Jobs at one gateway wait for what a request at another one has reserved of their tenant's budget."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from openai import APIStatusError, OpenAI

from gateway.domain.store_address import StoreAddress
from gateway.storage import Store
from tests.integration.conftest import MODEL
from tests.support.logged_events import logged_events
from tests.support.processes import Engine, Gateway, House, fetch, until
from tests.support.redis_server import own_redis_server

CHAT: Final = "/v1/chat/completions"
BUDGET: Final = 1000
"""Tokens a day."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One agent serves both; only ``runs`` runs jobs."""

    asks: Gateway
    runs: Gateway
    engine: Engine
    key: str

    def job(self, path: str = "", body: object = None) -> Any:
        return fetch(f"{self.runs.base_url}/jobs{path}", body=body, key=self.key, timeout_s=30.0)

    def submit(self, max_tokens: int) -> str:
        return str(self.job(body={"path": CHAT, "body": chat(max_tokens)})["id"])

    def waits(self, job_id: str) -> int:
        """How often the job was put off so far."""
        put_off = [
            each for each in logged_events(self.runs.child.log, "job_queued_again") if each["job"] == job_id
        ]
        assert {each["reason"] for each in put_off} <= {"insufficient_quota"}
        return len(put_off)


def chat(max_tokens: int, **other: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": max_tokens,
        **other,
    }


@pytest.fixture(params=["redis", "postgresql"])
def pair(house: House, postgres_address: StoreAddress, request: pytest.FixtureRequest) -> Iterator[Pair]:
    directory: Path = house.directory
    with own_redis_server(directory) as redis:
        shared = redis.url if request.param == "redis" else postgres_address.url
        objects = directory / "objects"
        objects.mkdir()
        common = {
            "TRUNKLINE_GATEWAY_JOBS__OBJECTS": objects.as_uri(),
            "TRUNKLINE_GATEWAY_JOBS__LOOK_S": "0.2",
            "TRUNKLINE_GATEWAY_SHARED_PROCESSES": "2",
        }
        at = ("--store", postgres_address.url, "--shared", shared, "--log-format", "json")
        runs = house.gateway(*at, name="runs", environment=common)
        cluster_key = ("--cluster-key", str(runs.state / "cluster.key"))
        only_asks = common | {"TRUNKLINE_GATEWAY_JOBS__RUN": "false"}
        asks = house.gateway(*at, *cluster_key, name="asks", environment=only_asks)
        key = runs.key("tests")
        with Store.open(runs.state) as store:
            store.limits.tenants.change("tests", {"tokens_per_day": BUDGET}, time.time())
        engine = house.engine("--model", MODEL)
        house.agent(runs, engine.url)
        for gateway in (asks, runs):
            house.wait_for_model(gateway, key, MODEL)
            until("the budget counts", lambda: over_budget(gateway, key), 30.0)  # noqa: B023
        yield Pair(asks, runs, engine, key)


def over_budget(gateway: Gateway, key: str) -> bool:
    with OpenAI(base_url=gateway.base_url, api_key=key, max_retries=0) as sdk:
        try:
            sdk.chat.completions.create(**chat(BUDGET + 1))
        except APIStatusError as error:
            return error.code == "insufficient_quota"
        return False


def begun(sdk: OpenAI) -> Any:
    """An answer of up to 900 tokens that has begun. While a gateway has no answer in time from where budgets
    are shared, as on a machine that stood still, it has half of each, which is too little: then it is asked
    again."""
    found: list[Any] = []

    def is_begun() -> bool:
        try:
            asked = chat(900, stream=True, extra_body={"script": {"stepped": True}})
            found.append(sdk.chat.completions.create(**asked))
        except APIStatusError as error:
            if error.code != "insufficient_quota":
                raise
        return bool(found)

    until("it has begun", is_begun, 30.0)
    return found[0]


def test_a_job_waits_for_what_another_gateway_has_reserved_and_fails_once_it_is_spent(pair: Pair) -> None:
    with OpenAI(base_url=pair.asks.base_url, api_key=pair.key, max_retries=0) as sdk:
        stream = begun(sdk)
        until("it is being answered", lambda: pair.engine.stats()["running"] == 1, 30.0)
        began_s, job_id = time.monotonic(), pair.submit(500)
        until("the job was put off twice", lambda: pair.waits(job_id) >= 2, 60.0)
        shown = pair.job(f"/{job_id}")
        assert shown["status"] in ("queued", "running"), shown
        assert pair.waits(job_id) <= 1 + (time.monotonic() - began_s) / 2.0, (
            "two seconds lie between two looks"
        )
        stream.close()
    until("its reservation is released", lambda: pair.job(f"/{job_id}")["status"] == "succeeded", 60.0)
    assert pair.job(f"/{job_id}")["attempts"] == 1

    too_much = pair.submit(BUDGET - 10)
    until("the job has ended", lambda: pair.job(f"/{too_much}")["status"] == "failed", 60.0)
    assert pair.job(f"/{too_much}")["error"]["code"] == "insufficient_quota"
