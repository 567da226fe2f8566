"""What processes on other hosts say, and why they do not."""

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from gateway.cluster import process_reads
from gateway.cluster.directory import DEAD_S
from gateway.cluster.process_client import NoAnswer
from gateway.cluster.process_reads import SIGNATURE, RemoteProcesses
from gateway.cluster.process_tokens import check_token, sign_answer
from gateway.domain.http_get import HttpAnswer
from gateway.storage.processes import ProcessRecord

KEY = b"k" * 32
NOW_S = 1_800_000_000.0


def row(name: str, address: str | None, *, silent_s: float = 1.0, url: str | None = None) -> ProcessRecord:
    return ProcessRecord(name, 1, url, f"host-{name}", "1", 0.0, NOW_S - silent_s, address=address)


class Members:
    name = "a"

    def __init__(self, *rows: ProcessRecord) -> None:
        self.rows = (row("a", "http://a"), *rows)

    def store_s(self) -> float:
        return NOW_S


class Played:
    """Answers at every address; the answer is a member's unless ``spoil`` changes it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.body: bytes = b'{"x":1}'
        self.spoil: Callable[[HttpAnswer], None] = lambda answer: None

    async def get(
        self, url: str, target: str, authorization: str, within_s: float, ca_file: Path | None
    ) -> HttpAnswer:
        self.asked.append((url, target))
        if url == "http://away":
            raise NoAnswer("no answer within 2 s")
        scheme, _, token = authorization.partition(" ")
        assert scheme == "trunkline-process"
        check_token(KEY, token, target.split("/")[2], target, NOW_S)
        answer = HttpAnswer(
            1 << 24, 200, {SIGNATURE: sign_answer(KEY, token, self.body)}, bytearray(self.body)
        )
        self.spoil(answer)
        return answer


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    made = Played()
    monkeypatch.setattr(process_reads, "get", made.get)
    return made


def remote(*rows: ProcessRecord) -> RemoteProcesses:
    return RemoteProcesses(Members(*rows), KEY, lambda: ["here"])


async def test_all_others_that_are_alive_and_not_on_this_host_are_asked(played: Played) -> None:
    others = remote(
        row("here", "http://here"),
        row("b", "http://b", url="wss://public-b"),
        row("c", None, url="http://c"),
        row("dead", "http://dead", silent_s=DEAD_S + 100),
    )
    answers = await others.ask_all("streams", agent="gpu 1")
    assert answers.found == {"b": {"x": 1}, "c": {"x": 1}}
    assert answers.missing == {}
    assert played.asked == [
        ("http://b", "/cluster/b/streams?agent=gpu+1"),
        ("http://c", "/cluster/c/streams?agent=gpu+1"),
    ]
    assert others.gone() == {"dead": "it has not been heard of for 106 s"}


async def test_one_that_cannot_be_asked_is_named_with_the_reason(played: Played) -> None:
    answers = await remote(row("b", "http://away"), row("c", None), row("d", "http://d")).ask_all("queue")
    assert list(answers.found) == ["d"]
    assert answers.missing == {
        "b": "no answer within 2 s",
        "c": "it does not say where it can be asked: set cluster.address there",
    }


def status(number: int) -> Callable[[HttpAnswer], None]:
    return lambda answer: setattr(answer, "status", number)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (status(404), "earlier version"),
        (status(421), "another process of the gateway"),
        (status(401), "status 401"),
        (status(302), "status 302"),
        (lambda answer: answer.headers.clear(), "somebody else answers"),
        (lambda answer: answer.body.extend(b" "), "somebody else answers"),
    ],
)
async def test_what_no_member_says_is_not_believed(
    played: Played, spoil: Callable[[HttpAnswer], None], said: str
) -> None:
    played.spoil = spoil
    answers = await remote(row("b", "http://b")).ask_all("queue")
    assert answers.found == {}
    assert said in answers.missing["b"]


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", orjson.dumps("x")])
async def test_what_a_member_says_must_be_an_object(played: Played, body: bytes) -> None:
    played.body = body
    assert (await remote(row("b", "http://b")).ask_all("queue")).missing == {"b": "its answer cannot be read"}
