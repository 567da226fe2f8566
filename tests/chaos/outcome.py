"""What became of one request, as its client saw it."""

from dataclasses import dataclass

from tests.chaos.asks import Ask
from tests.chaos.checks import Failure, Finding


@dataclass(frozen=True, slots=True)
class Outcome:
    """Times are seconds since the start of the run."""

    ask: Ask
    finding: Finding
    failure: Failure | None
    began_s: float
    ended_s: float
    pause_s: float = 0.0
    """The longest time between two reads of a stream."""
    agent: str = ""
    attempts: str = ""
    request_id: str = ""

    def __str__(self) -> str:
        ask, failure = self.ask, self.failure
        how = "streamed" if ask.stream else "whole"
        nature = " ".join(filter(None, (ask.behaviour, ask.special, "SDK" if ask.sdk else "")))
        return (
            f"#{ask.number} {self.request_id} {ask.model} {ask.route} {how} {nature} "
            f"tokens={ask.tokens} at={ask.tokens_per_s}/s {self.began_s:.2f}–{self.ended_s:.2f} s "
            f"agent={self.agent or '?'} attempts={self.attempts or '?'} pause={self.pause_s:.1f} s: "
            f"{self.finding.verdict}: {self.finding.detail} {failure.message if failure else ''}"
        )
