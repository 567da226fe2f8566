"""Jobs and background responses of two gateways with one store on a PostgreSQL server."""

import time
from dataclasses import dataclass
from typing import Any, Final

import pytest
from openai import OpenAI

from gateway.domain.store_address import StoreAddress
from tests.integration.conftest import MODEL
from tests.support.processes import Engine, Gateway, House, answer_to, fetch, until

CHAT: Final = "/v1/chat/completions"
LOOK_S = 60.0
"""Between two looks into the store: what comes sooner was told."""
SOON_S = 45.0
TOKENS = 12
STEPPED = {"script": {"stepped": True}}


@dataclass(frozen=True, slots=True)
class Pair:
    """Only ``runs`` has an engine, and only it runs jobs."""

    asks: Gateway
    runs: Gateway
    engine: Engine
    key: str

    def job(self, path: str = "", body: object = None, of: Gateway | None = None) -> Any:
        return fetch(f"{(of or self.asks).base_url}/jobs{path}", body=body, key=self.key, timeout_s=30.0)


@pytest.fixture
def pair(house: House, postgres_address: StoreAddress) -> Pair:
    objects = house.directory / "objects"
    objects.mkdir()
    common = {
        "TRUNKLINE_GATEWAY_JOBS__OBJECTS": objects.as_uri(),
        "TRUNKLINE_GATEWAY_JOBS__LOOK_S": str(LOOK_S),
    }
    at = ("--store", postgres_address.url)
    runs = house.gateway(*at, name="runs", environment=common)
    cluster_key = ("--cluster-key", str(runs.state / "cluster.key"))
    only_asks = common | {"TRUNKLINE_GATEWAY_JOBS__RUN": "false"}
    asks = house.gateway(*at, *cluster_key, name="asks", environment=only_asks)
    engine = house.engine("--model", MODEL)
    key = runs.key("tests")
    house.agent(runs, engine.url, environment={"TRUNKLINE_AGENT_CONTINUES": "chat=final_message"})
    house.wait_for_model(runs, key, MODEL)
    return Pair(asks, runs, engine, key)


def test_jobs_begin_and_are_cancelled_at_another_gateway_before_it_looks(pair: Pair) -> None:
    begun_s: list[float] = []
    ended_s: list[float] = []
    for number in range(5):
        cancelled = pair.engine.stats()["cancelled"]
        messages = [{"role": "user", "content": f"{number}"}]
        body = {"model": MODEL, "messages": messages, "max_tokens": 9, "stream": True, **STEPPED}
        asked_s = time.monotonic()
        made = pair.job(body={"path": CHAT, "body": body})
        until("an engine has it", lambda: pair.engine.stats()["running"] == 1, 60.0)
        begun_s.append(time.monotonic() - asked_s)
        asked_s = time.monotonic()
        assert pair.job(f"/{made['id']}/cancel", body={})["cancelling"] is True
        until("its engine is told", lambda: pair.engine.stats()["cancelled"] > cancelled, 60.0)  # noqa: B023
        ended_s.append(time.monotonic() - asked_s)
        until("it has ended", lambda: pair.job(f"/{made['id']}")["status"] == "cancelled", 60.0)  # noqa: B023
    for what, took_s in (("began after", begun_s), ("ended after", ended_s)):
        print(what, " ".join(f"{each * 1000:.0f}" for each in sorted(took_s)), "ms")  # noqa: T201
        assert max(took_s) < SOON_S


def test_a_response_is_made_at_one_gateway_and_followed_and_cancelled_at_the_other(pair: Pair) -> None:
    asked: dict[str, Any] = {"model": MODEL, "background": True, "max_output_tokens": TOKENS}
    with at(pair.asks, pair.key) as one, at(pair.runs, pair.key) as other:
        stream = one.responses.create(**asked, input="one", stream=True, extra_body=STEPPED)
        seen = [next(stream) for _ in range(2)]
        assert [each.type for each in seen] == ["response.created", "response.queued"]
        pair.engine.write_until(5)
        seen += [next(stream) for _ in range(6)]
        stream.close()
        (response_id,) = {each.response.id for each in seen if hasattr(each, "response")}
        assert other.responses.retrieve(response_id).status == "in_progress"

        second = other.responses.retrieve(response_id, stream=True, starting_after=seen[-1].sequence_number)
        seen += [next(second)]
        second.close()
        pair.engine.write_until(TOKENS)
        fetch(f"{pair.engine.url}/_step", body={})  # to its end
        seen += one.responses.retrieve(response_id, stream=True, starting_after=seen[-1].sequence_number)
        assert [each.sequence_number for each in seen] == list(range(len(seen)))
        text = "".join(each.delta for each in seen if each.type == "response.output_text.delta")
        assert text == answer_to("one", TOKENS)
        for client in (one, other):
            assert client.responses.retrieve(response_id).output_text == text

        for maker, canceller in ((one, other), (other, one)):
            cancelled = pair.engine.stats()["cancelled"]
            made = maker.responses.create(**asked, input="two", extra_body=STEPPED)
            until("an engine has it", lambda: pair.engine.stats()["running"] == 1, 60.0)
            assert canceller.responses.cancel(made.id).status == "cancelled"
            until("its engine is told", lambda: pair.engine.stats()["cancelled"] > cancelled, SOON_S)  # noqa: B023
            assert maker.responses.retrieve(made.id).status == "cancelled"


def at(gateway: Gateway, key: str) -> OpenAI:
    return OpenAI(base_url=gateway.base_url, api_key=key, max_retries=0, timeout=60)
