from gateway.domain.prompt import prompt_of
from gateway.scheduling.learning.prefix import fingerprints

SYSTEM = {"role": "system", "content": "be terse " * 300}


def chain(**members: object) -> tuple[int, ...]:
    return fingerprints(prompt_of(members))


def test_a_conversation_that_goes_on_begins_as_before() -> None:
    first = [SYSTEM, {"role": "user", "content": "a" * 3000}]
    before = chain(messages=first)
    after = chain(messages=[*first, {"role": "assistant", "content": "b" * 5000}])
    assert len(before) > 4
    assert after[: len(before)] == before


def test_another_prompt_shares_what_is_equal() -> None:
    one = chain(messages=[SYSTEM, {"role": "user", "content": "a" * 3000}])
    other = chain(messages=[SYSTEM, {"role": "user", "content": "b" * 3000}])
    shared = sum(ours == theirs for ours, theirs in zip(one, other, strict=True))
    assert 0 < shared < len(one)


def test_what_is_no_prompt_makes_no_difference() -> None:
    messages = [SYSTEM]
    assert prompt_of({"temperature": 1, "user": "u", "messages": messages}) == prompt_of(
        {"messages": messages, "seed": 7, "model": "m"}
    )


def test_other_tools_or_instructions_make_another_prompt_from_its_first_block() -> None:
    tools = [{"type": "function", "function": {"name": "f" * 2000}}]
    assert chain(messages=[SYSTEM], tools=tools)[0] != chain(messages=[SYSTEM])[0]
    assert chain(input="x" * 2000, instructions="y" * 2000)[0] != chain(input="x" * 2000)[0]


def test_a_request_without_a_prompt_has_none() -> None:
    assert prompt_of({"model": "m", "file": "f"}) == b""
    assert chain(model="m") == ()


def test_what_engines_read_beside_the_prompt_counts() -> None:
    for name in ("context", "template", "suffix", "text_2", "data_1", "content"):
        assert len(prompt_of({"prompt": "x", name: [1] * 1000})) > 2000
