"""A game day: what is played, what each answer was, and what is wrong with them."""

import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from tests.support.processes import answer_to

CHAT = "/v1/chat/completions"
MODEL = "scripted"

MAY_NOT = ("residency_unavailable",)
"""What a request is told that is bound to a region which is away."""


@dataclass(frozen=True, slots=True)
class GamePlan:
    """What is played. Times in seconds."""

    namespaces: bool
    regions: tuple[tuple[str, float], ...] = (("eu", 0.005), ("us", 0.04), ("ap", 0.09))
    """Names and how far they are, one way; the first is the nearest, and is cut."""
    streams: int = 8
    """That run when a region is cut."""
    tokens: int = 300
    tokens_per_s: float = 10.0
    steady_s: float = 8.0
    outage_s: float = 65.0
    failback_s: float = 10.0
    ramp_s: float = 10.0
    kill: bool = True
    """The child of the first region is killed at the end, too."""
    short: bool = False
    """The parent goes on elsewhere a second after a tunnel is silent; else its defaults."""


@dataclass(slots=True)
class Told:
    """One request, and all that its client saw of it. Times are of ``time.monotonic``."""

    number: int
    tokens: int
    began_s: float
    bound: str | None = None
    """The region that it is bound to."""
    status: int = 0
    id: str = ""
    region: str | None = None
    """Where it went first, as its answer's head says; one that had to wait long has a head that does not."""
    text: str = ""
    ended: bool = False
    """The stream's own end came."""
    error: str | None = None
    first_s: float | None = None
    last_s: float | None = None
    ended_s: float | None = None
    gap_s: float = 0.0
    """The longest time without a token."""

    @property
    def prompt(self) -> str:
        return f"game {self.number}"

    @property
    def right(self) -> bool:
        """The whole answer, each token once."""
        return self.ended and self.text == answer_to(self.prompt, self.tokens)

    @property
    def refused_clearly(self) -> bool:
        """Bound to a region that was away, it was told so: with status 503, or in an event, where a comment
        had been sent while it waited."""
        said = self.status in (200, 503) and self.error in MAY_NOT
        return self.bound is not None and said and not self.text

    def __str__(self) -> str:
        came = f"{len(self.text.split())} of {self.tokens} tokens"
        what = f"request {self.number} (bound to {self.bound})"
        return f"{what}: {self.status} {self.error}, {came}, {self.region}"


async def ask(
    session: aiohttp.ClientSession, told: Told, tokens_per_s: float, *, others_s: float = 300.0
) -> Told:
    """Send it and read its answer to the end."""
    headers = {} if told.bound is None else {"x-trunkline-where": f"region={told.bound}"}
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": told.prompt}],
        "max_tokens": told.tokens,
        "stream": True,
        "script": {"tokens_per_s": tokens_per_s},
    }
    timeout = aiohttp.ClientTimeout(total=others_s)
    try:
        async with session.post(CHAT, json=body, headers=headers, timeout=timeout) as answer:
            told.status, told.region = answer.status, answer.headers.get("x-trunkline-agent")
            told.id = answer.headers["x-request-id"]
            if answer.status != 200:
                told.error = str(orjson.loads(await answer.read())["error"]["code"])
            else:
                async for line in answer.content:
                    _read(told, line)
    except (aiohttp.ClientError, TimeoutError) as error:
        told.error = repr(error)
    told.ended_s = time.monotonic()
    return told


def _read(told: Told, line: bytes) -> None:
    if not line.startswith(b"data: "):
        return
    if line.startswith(b"data: [DONE]"):
        told.ended = True
        return
    event: dict[str, Any] = orjson.loads(line[6:])
    if "error" in event:
        told.error = str(event["error"].get("code"))
        return
    for choice in event.get("choices", ()):
        if piece := choice["delta"].get("content"):
            now = time.monotonic()
            if told.last_s is not None:
                told.gap_s = max(told.gap_s, now - told.last_s)
            told.first_s, told.last_s = told.first_s or now, now
            told.text += piece


@dataclass(slots=True)
class Figures:
    """Seconds, as measured; None where that did not come about."""

    streams_go_on_s: float | None = None
    """The longest pause of a stream whose region was cut."""
    killed_go_on_s: float | None = None
    """The same where the child was killed."""
    requests_wait_s: float | None = None
    """The longest wait for a first token of what was asked after the cut."""
    bound_refused_s: float | None = None
    """From the cut to the first refusal of a request that is bound to the region."""
    bound_back_s: float | None = None
    """From the end of the cut to the first answer there."""
    failback_s: float | None = None
    """From the end of the cut to the first request that others could have had."""
    up_s: float | None = None
    """From the end of the cut to the region being used as before."""


@dataclass(slots=True)
class GameFindings:
    """What came of it."""

    plan: GamePlan
    how: str = ""
    """What the hosts and their lines were."""
    told: list[Told] = field(default_factory=list)
    figures: Figures = field(default_factory=Figures)
    wrong: list[str] = field(default_factory=list)
    tokens_booked: int = 0
    nearest: tuple[int, int] = (0, 0)
    """Of the requests while all was well: those that the nearest region got, and all."""
    rtts_s: dict[str, float] = field(default_factory=dict)
    ran: dict[str, list[str]] = field(default_factory=dict)
    """By request's id: the deployments that got it, as the audit log says."""

    def judge(self) -> None:
        """Find what is wrong with the answers."""
        for each in self.told:
            if not (each.right or each.refused_clearly):
                self.wrong.append(str(each))
            ran = self.ran.get(each.id, [])
            if each.bound is not None and any(not key.startswith(f"{each.bound}/") for key in ran):
                self.wrong.append(f"{each} left its region: {ran}")
            if each.right and not ran:
                self.wrong.append(f"{each} is not in the audit log")
        asked = sum(each.tokens for each in self.told if each.right)
        if self.tokens_booked != asked:
            self.wrong.append(f"{self.tokens_booked} tokens are booked, of {asked} that came")

    def judge_times(self, promised: "Figures") -> None:
        """Hold what was measured against what is promised."""
        for name in Figures.__slots__:
            most_s, found_s = getattr(promised, name), getattr(self.figures, name)
            if most_s is not None and (found_s is None or found_s > most_s):
                self.wrong.append(f"{name}: {found_s} s, and {most_s} s are promised")

    def lines(self, promised: "Figures") -> list[str]:
        """For people."""
        refused = sum(each.refused_clearly for each in self.told)
        found = [
            f"regions: {self.how}; round trips "
            + ", ".join(f"{name} {rtt_s * 1000:.0f} ms" for name, rtt_s in sorted(self.rtts_s.items())),
            f"  {len(self.told)} requests, {sum(each.right for each in self.told)} whole, {refused} refused "
            f"for their region, {self.tokens_booked} tokens booked; while all was well, {self.nearest[0]} of "
            f"{self.nearest[1]} were at the nearest",
        ]
        for name in Figures.__slots__:
            most_s, found_s = getattr(promised, name), getattr(self.figures, name)
            measured = "-" if found_s is None else f"{found_s:.1f} s"
            limit = "" if most_s is None else f" (promised: {most_s:g} s)"
            found.append(f"  {name}: {measured}{limit}")
        return found
