"""What is asked, when, of whom."""

import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from gateway.bench.arrivals import Arrivals, starts_s
from gateway.bench.errors import BadPlan
from gateway.bench.plan import Route, target_of
from gateway.bench.prompts import bodies, made_prompts, read_prompts


def test_constant_arrivals_are_at_equal_distances() -> None:
    assert list(itertools.islice(starts_s(Arrivals.CONSTANT, 4.0, 0), 4)) == [0.0, 0.25, 0.5, 0.75]


def test_poisson_arrivals_have_their_rate_and_the_spread_of_chance() -> None:
    starts = list(itertools.islice(starts_s(Arrivals.POISSON, 50.0, 1), 5001))
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert starts[0] == 0.0
    assert statistics.mean(gaps) == pytest.approx(1 / 50, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(1 / 50, rel=0.1)


def test_the_same_seed_gives_the_same_load() -> None:
    def some(seed: int) -> tuple[list[float], list[object]]:
        starts = itertools.islice(starts_s(Arrivals.POISSON, 50.0, seed), 20)
        return list(starts), list(itertools.islice(made_prompts(20, seed), 3))

    assert some(1) == some(1)
    assert some(1) != some(2)


def test_made_prompts_are_of_their_length_and_differ_from_the_first_word_on() -> None:
    first, second = itertools.islice(made_prompts(200, 0), 2)
    assert isinstance(first, str)
    assert isinstance(second, str)
    assert len(first.split()) == len(second.split()) == 198
    assert first.split()[0] != second.split()[0]


def asked(route: Route, prompts: list[Any], **more: Any) -> list[dict[str, Any]]:
    made = bodies(prompts, route=route, model="m", max_tokens=5, stream=True, more=more)
    return [json.loads(body) for body in itertools.islice(made, 3)]


def test_prompts_are_asked_in_turn_and_again() -> None:
    texts = [body["messages"][0]["content"] for body in asked(Route.CHAT, ["a", "b"])]
    assert texts == ["a", "b", "a"]


def test_a_body_has_what_its_route_takes() -> None:
    chat, completion, embedding = (asked(route, ["hi"])[0] for route in Route)
    assert (chat["max_tokens"], chat["stream"]) == (5, True)
    assert chat["stream_options"] == {"include_usage": True}
    assert completion["prompt"] == "hi"
    assert embedding == {"model": "m", "input": "hi"}


def test_further_members_win() -> None:
    assert asked(Route.CHAT, ["a"], max_tokens=9, temperature=0)[0]["max_tokens"] == 9


def test_messages_are_for_chat_alone() -> None:
    conversation = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert asked(Route.CHAT, [conversation])[0]["messages"] == conversation
    with pytest.raises(BadPlan, match="messages are for chat"):
        asked(Route.COMPLETIONS, [conversation])


def test_a_file_holds_a_prompt_a_line(tmp_path: Path) -> None:
    plain, lines = tmp_path / "a.txt", tmp_path / "b.jsonl"
    plain.write_text("one\n\ntwo {x}\n")
    lines.write_text('"one"\n{"prompt": "two"}\n{"messages": [{"role": "user", "content": "three"}]}\n')
    assert read_prompts(plain) == ["one", "two {x}"]
    assert read_prompts(lines) == ["one", "two", [{"role": "user", "content": "three"}]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no prompt"),
        (b'{"prompt": 3}', "b.jsonl:1: neither"),
        (b'"a"\nnot json', "b.jsonl:2"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "b.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadPlan, match=message):
        read_prompts(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadPlan, match=r"gone\.txt"):
        read_prompts(tmp_path / "gone.txt")


@pytest.mark.parametrize(
    ("url", "authority", "prefix"),
    [
        ("http://host:8700/v1", "host:8700", "/v1"),
        ("http://host", "host:80", "/v1"),
        ("http://host/", "host:80", "/v1"),
        ("https://host/openai/v1/", "host:443", "/openai/v1"),
        ("http://[::1]:9/v1", "[::1]:9", "/v1"),
    ],
)
def test_a_base_url_is_what_openai_clients_are_given(url: str, authority: str, prefix: str) -> None:
    target = target_of(url, "k")
    assert (target.authority, target.prefix) == (authority, prefix)
    assert (target.tls is not None) == url.startswith("https")


@pytest.mark.parametrize(
    "url", ["", "host:80", "ftp://host", "http://", "http://host:x", "http://u@host", "http://h?a=1"]
)
def test_what_is_no_base_url_is_refused(url: str) -> None:
    with pytest.raises(BadPlan):
        target_of(url, "k")


def test_a_key_with_a_line_break_is_refused_and_not_shown() -> None:
    with pytest.raises(BadPlan) as caught:
        target_of("http://host", "secret\n")
    assert "secret" not in str(caught.value)
