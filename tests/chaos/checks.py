"""Holds an answer against what it must be. Pure."""

import re
from dataclasses import dataclass
from enum import StrEnum

from tests.chaos.answers import Answer
from tests.chaos.asks import Ask, Special

_TOKEN = re.compile(r"(\d+):([0-9a-f]{6}) ")


class Verdict(StrEnum):
    """What became of a request. Everything but the first three is a defect, whatever the faults were."""

    RIGHT = "right"
    LEFT = "client left"
    """The client went away by its own will; what it had until then was right."""
    ERROR = "error"
    """It ended with an error that was said; the oracle rules on it."""
    WRONG = "wrong"
    LOST = "tokens lost"
    DOUBLED = "tokens doubled"
    UNENDED = "no end"
    """The stream was over without its end and without an error: silently truncated."""
    IDS = "wrong ids"
    USAGE = "usage wrong"
    SHAPE = "shape wrong"


@dataclass(frozen=True, slots=True)
class Failure:
    """An error a client saw. ``where``: ``head`` (a status), ``frame`` (in the stream) or ``connection``."""

    where: str
    code: str
    status: int = 0
    message: str = ""

    def __str__(self) -> str:
        return f"{self.where} {self.status or ''} {self.code}".replace("  ", " ")


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one request and what it rests on."""

    verdict: Verdict
    detail: str = ""


def judge(ask: Ask, answer: Answer, failure: Failure | None, *, left: bool = False) -> Finding:
    """The verdict. ``left``: the client went away before the end, so only what it had by then counts."""
    for choice, expected in enumerate(ask.texts):
        text = answer.text(choice)
        partial = left or failure is not None
        if partial and expected.startswith(text):
            continue
        if text != expected:
            if not partial and not answer.ended and expected.startswith(text):
                return Finding(
                    Verdict.UNENDED, f"{len(text)} of {len(expected)} characters, no end, no error"
                )
            return _compare(ask, text, expected)
    if failure is not None:
        return Finding(Verdict.ERROR, str(failure))
    if left:
        return Finding(Verdict.LEFT)
    if not answer.ended:
        return Finding(Verdict.UNENDED, "all of the text, but not the end")
    return _the_rest(ask, answer)


def _compare(ask: Ask, text: str, expected: str) -> Finding:
    """What is wrong with a text that is not the one expected."""
    detail = f"got …{text[-60:]!r} ({len(text)} characters), expected …{expected[-60:]!r} ({len(expected)})"
    if ask.recorded:
        return Finding(Verdict.LOST if expected.startswith(text) else Verdict.WRONG, detail)
    seen, wanted = _TOKEN.findall(text), _TOKEN.findall(expected)
    if set(seen) - set(wanted):
        return Finding(Verdict.WRONG, detail)
    if len(seen) != len(set(seen)):
        return Finding(Verdict.DOUBLED, f"{len(seen) - len(set(seen))} doubled; {detail}")
    if set(seen) != set(wanted):
        return Finding(Verdict.LOST, f"{len(wanted) - len(seen)} lost; {detail}")
    return Finding(Verdict.WRONG, detail)


def _the_rest(ask: Ask, answer: Answer) -> Finding:
    """Ids, usage and shape of an answer whose text is right."""
    if len(answer.ids) != 1:
        return Finding(Verdict.IDS, f"ids {sorted(answer.ids)}")
    if answer.problems:
        return Finding(Verdict.SHAPE, "; ".join(answer.problems))
    finish = (
        "tool_calls" if ask.special is Special.TOOLS and ask.stream else "stop" if ask.stopped else "length"
    )
    if set(answer.finish.values()) != {finish}:
        return Finding(Verdict.SHAPE, f"finish reasons {answer.finish}, expected {finish}")
    if ask.stream and ask.route != "completions" and answer.roles != len(ask.texts):
        return Finding(Verdict.SHAPE, f"{answer.roles} starts of {len(ask.texts)}")
    if answer.final_text is not None and answer.final_text != ask.texts[0]:
        return Finding(Verdict.SHAPE, "the text at the end is not what was streamed")
    return _usage(ask, answer)


def _usage(ask: Ask, answer: Answer) -> Finding:
    told = answer.completion_tokens is not None
    if ask.stream and ask.route in ("chat", "completions") and told != ask.usage:
        return Finding(Verdict.USAGE, "usage told" if told else "usage asked for and not told")
    if not told:
        return Finding(Verdict.RIGHT)
    seen = (answer.prompt_tokens, answer.completion_tokens)
    expected = (ask.prompt_tokens, ask.tokens * len(ask.texts))
    if ask.recorded:  # the record counts the words of the answer, the engine its last token too
        expected = (seen[0] or 0, ask.tokens + 1)
    if seen != expected:
        return Finding(Verdict.USAGE, f"usage {seen}, expected {expected}")
    return Finding(Verdict.RIGHT)
