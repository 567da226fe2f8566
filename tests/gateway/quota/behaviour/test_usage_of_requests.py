"""What a request counts as, however its answer ends; what never reached an engine does not count."""

import orjson

from gateway.domain.errors import NoDeployment, StreamBroken
from gateway.quota.usage import UsageLedger
from gateway.storage import Account, Amount
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import Trailers, Usage
from tests.gateway.api.support import EVENTS, FakeResponse, Surface, json_response

PATH = "/v1/chat/completions"
ASK = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
LONG = [{"role": "user", "content": "a word " * 146}]
MINE = Account("1970-01-01", "k1", "default", "m")


def surface() -> tuple[Surface, UsageLedger]:
    ledger = UsageLedger(lambda: 5.0)
    return Surface(accounts=ledger), ledger


async def test_an_answer_counts_with_what_its_engine_reported() -> None:
    front, ledger = surface()
    front.dispatcher.answer(json_response()).trailers = Trailers(usage=Usage(12, 7, 3))
    await front.post(PATH, ASK)
    assert ledger.take() == {MINE: Amount(1, 12, 7, 3)}


async def test_an_answer_without_reported_usage_counts_as_a_request() -> None:
    for trailers in (None, Trailers()):
        front, ledger = surface()
        front.dispatcher.answer(json_response()).trailers = trailers
        await front.post(PATH, ASK)
        assert ledger.take() == {MINE: Amount(1)}


async def test_a_stream_that_was_to_tell_its_usage_and_did_not_counts_as_what_was_seen_of_it() -> None:
    front, ledger = surface()
    front.dispatcher.answer(FakeResponse(200, EVENTS, (b"data: [DONE]\n\n",))).trailers = Trailers()
    await front.post(PATH, orjson.dumps(orjson.loads(ASK) | {"stream": True, "messages": LONG}))
    (amount,) = ledger.take().values()
    assert (amount.requests, amount.completion_tokens) == (1, 0)
    assert 250 <= amount.prompt_tokens <= 270


async def test_an_answer_that_breaks_counts_as_a_request() -> None:
    front, ledger = surface()
    response = front.dispatcher.answer(FakeResponse(200, EVENTS, (b"data: 1\n\n",), ended=False))
    response.break_off(StreamBroken(ErrorCode.INTERNAL, "lost"))
    await front.post(PATH, ASK)
    assert ledger.take() == {MINE: Amount(1)}


async def test_an_answer_whose_client_leaves_counts_as_a_request() -> None:
    front, ledger = surface()
    response = front.dispatcher.answer(FakeResponse(200, EVENTS, (b"data: 1\n\n",), ended=False))
    call = front.ask(
        "POST", PATH, (b"content-length", b"%d" % len(ASK)), (b"authorization", b"Bearer sk-tl-test")
    )
    call.body(ASK)
    await call._news.wait()
    call.disconnect()
    await call.done()
    assert response.aborted
    assert ledger.take() == {MINE: Amount(1)}


async def test_what_never_reached_an_engine_does_not_count() -> None:
    front, ledger = surface()
    front.dispatcher.fail(NoDeployment("Nothing serves it."))
    await front.post(PATH, ASK)
    await front.post(PATH, b"no json")
    await front.post(PATH, ASK, key=False)
    assert ledger.take() == {}
