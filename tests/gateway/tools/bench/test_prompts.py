"""What is asked."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.tools.bench.plan import BadPlan, BenchPlan, BenchRoute
from gateway.tools.bench.prompts import bodies, made_prompts, read_prompts


def test_made_prompts_are_of_their_length_and_differ_from_the_first_word_on() -> None:
    first, second = itertools.islice(made_prompts(200, 0), 2)
    assert isinstance(first, str)
    assert isinstance(second, str)
    assert len(first.split()) == len(second.split()) == 198
    assert first.split()[0] != second.split()[0]


def asked(route: BenchRoute, prompts: list[Any], **more: Any) -> list[dict[str, Any]]:
    made = bodies(prompts, BenchPlan(route=route, max_tokens=5), "m", more)
    return [json.loads(body) for body in itertools.islice(made, 3)]


def test_prompts_are_asked_in_turn_and_again() -> None:
    texts = [body["messages"][0]["content"] for body in asked(BenchRoute.CHAT, ["a", "b"])]
    assert texts == ["a", "b", "a"]


def test_a_body_has_what_its_route_takes() -> None:
    chat, completion, embedding = (asked(route, ["hi"])[0] for route in BenchRoute)
    assert (chat["max_tokens"], chat["stream"]) == (5, True)
    assert chat["stream_options"] == {"include_usage": True}
    assert completion["prompt"] == "hi"
    assert embedding == {"model": "m", "input": "hi"}


def test_further_members_win() -> None:
    assert asked(BenchRoute.CHAT, ["a"], max_tokens=9, temperature=0)[0]["max_tokens"] == 9


def test_messages_are_for_chat_alone() -> None:
    conversation = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert asked(BenchRoute.CHAT, [conversation])[0]["messages"] == conversation
    with pytest.raises(BadPlan, match="messages are for chat"):
        asked(BenchRoute.COMPLETIONS, [conversation])


def test_a_file_holds_a_prompt_a_line(tmp_path: Path) -> None:
    plain, lines = tmp_path / "a.txt", tmp_path / "b.jsonl"
    plain.write_text("one\n\ntwo {x}\n")
    lines.write_text('"one"\n{"prompt": "two"}\n{"messages": [{"role": "user", "content": "three"}]}\n')
    assert read_prompts(plain) == ["one", "two {x}"]
    assert read_prompts(lines) == ["one", "two", [{"role": "user", "content": "three"}]]


def test_a_prompt_may_hold_any_character_but_the_end_of_its_line(tmp_path: Path) -> None:
    plain, lines = tmp_path / "a.txt", tmp_path / "b.jsonl"
    plain.write_bytes("\ufeffone\r\ntwo\u2028three\x0cfour\r\n".encode())
    lines.write_bytes('\ufeff"one"\r\n"two\u2028three\x85four"\r\n'.encode())
    assert read_prompts(plain) == ["one", "two\u2028three\x0cfour"]
    assert read_prompts(lines) == ["one", "two\u2028three\x85four"]


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
