"""What a gateway tells over ``/admin/events``, kept up to date, with rates and percentiles.

Pure: times are those in the events. Everything here is bounded.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gateway.api.admin.live.patch import apply_patch

Json = dict[str, Any]

RATE_S = 30.0
"""Rates are means over so long."""
TIMES_S = 300.0
"""Percentiles are of the answers of so long."""
MOST_TIMES = 300
"""Of a model, the latest."""
MOST_REQUESTS = 1000
MOST_KEPT = 300
"""Slow ones, and failed ones, that are kept for longer."""
MOST_CHANGES = 100
FILLED_REQUESTS = 500
"""That ``GET /admin/requests`` is asked for: the most it gives."""

_HAPPENINGS = ("requests", "requests_left_out", "flow", "tokens", "changes")
_LIVE = ("queued", "running")

RequestKey = tuple[str, str]


class TokenRates:
    """Tokens of answers and of prompts a second, by deployment and by model: of the requests that ended in
    the last :data:`RATE_S`, because engines count at the end."""

    def __init__(self) -> None:
        self._told = deque[tuple[float, str, int, int]]()
        self._sums: dict[str, list[int]] = {}
        self._since_s: float | None = None
        self._now_s = 0.0

    def add(self, at_s: float, deployment: str, prompt: int, completion: int) -> None:
        """A deployment answered with so many tokens at this time; times grow."""
        self._told.append((at_s, deployment, prompt, completion))
        counts = self._sums.setdefault(deployment, [0, 0])
        counts[0] += prompt
        counts[1] += completion
        self.pass_to(at_s)

    def pass_to(self, now_s: float) -> None:
        """It is so late now."""
        self._now_s = max(self._now_s, now_s)
        if self._since_s is None:
            self._since_s = now_s
        while self._told and self._told[0][0] <= self._now_s - RATE_S:
            _, deployment, prompt, completion = self._told.popleft()
            counts = self._sums[deployment]
            counts[0] -= prompt
            counts[1] -= completion
            if not any(counts):
                del self._sums[deployment]

    def known_since(self, at_s: float) -> None:
        """All that happened from this time on was added."""
        self._since_s = at_s

    def of(self, deployment: str) -> tuple[float, float]:
        """Tokens of prompts and of answers a second."""
        counts = self._sums.get(deployment)
        return (0.0, 0.0) if counts is None else (counts[0] / self._span_s, counts[1] / self._span_s)

    def total(self) -> tuple[float, float]:
        """Of all deployments."""
        prompt = sum(each[0] for each in self._sums.values())
        completion = sum(each[1] for each in self._sums.values())
        return prompt / self._span_s, completion / self._span_s

    def of_models(self, deployments: Mapping[str, Json]) -> dict[str, tuple[float, float]]:
        """By model. ``deployments`` say whose a deployment is; one that is gone counts for none."""
        found: dict[str, tuple[float, float]] = {}
        for key in self._sums:
            facts = deployments.get(key)
            if facts is not None:
                model, one = str(facts.get("model", "")), self.of(key)
                other = found.get(model, (0.0, 0.0))
                found[model] = other[0] + one[0], other[1] + one[1]
        return found

    @property
    def _span_s(self) -> float:
        since_s = self._now_s if self._since_s is None else self._since_s
        return min(RATE_S, max(1.0, self._now_s - since_s))


class FirstTokenTimes:
    """Times to the first token of streams, by model: of the latest :data:`MOST_TIMES` in :data:`TIMES_S`."""

    def __init__(self) -> None:
        self._times: dict[str, deque[tuple[float, float]]] = {}

    def add(self, model: str, at_s: float, first_s: float) -> None:
        """A stream of this model began to answer so long after its arrival."""
        self._times.setdefault(model, deque(maxlen=MOST_TIMES)).append((at_s, first_s))

    def percentiles(self, model: str, now_s: float, shares: Sequence[float]) -> list[float] | None:
        """Seconds below which these shares lie; None: nothing is known."""
        times = self._times.get(model)
        if times is None:
            return None
        while times and times[0][0] <= now_s - TIMES_S:
            times.popleft()
        if not times:
            del self._times[model]
            return None
        found = sorted(first_s for _, first_s in times)
        return [found[min(len(found) - 1, int(share * len(found)))] for share in shares]


class RequestBook:
    """The latest requests, and for longer those that were slow or failed."""

    def __init__(self) -> None:
        self.live: dict[RequestKey, Json] = {}
        self._ended: dict[RequestKey, Json] = {}
        self._slow: dict[RequestKey, Json] = {}
        self._failed: dict[RequestKey, Json] = {}

    def note(self, request: Json) -> bool:
        """What is known of a request now. False: nothing new."""
        key = str(request.get("process", "")), str(request["id"])
        if request.get("state") in _LIVE:
            if key in self.live and self.live[key].get("state") == request.get("state"):
                return False
            self.live[key] = request
            return True
        self.live.pop(key, None)
        new = key not in self._ended
        _put(self._ended, key, request, MOST_REQUESTS)
        if request.get("slow"):
            _put(self._slow, key, request, MOST_KEPT)
        if request.get("state") == "failed":
            _put(self._failed, key, request, MOST_KEPT)
        return new

    def replace_live(self, requests: Iterable[Json]) -> None:
        """These are all that wait and run."""
        self.live = {}
        for each in reversed(list(requests)):
            if each.get("state") in _LIVE:
                self.note(each)

    def of(self, kind: str) -> Iterator[tuple[RequestKey, Json]]:
        """Those of a kind: ``all``, ``waiting``, ``running``, ``slow`` or ``failed``."""
        if kind in ("waiting", "running"):
            state = "queued" if kind == "waiting" else "running"
            yield from ((key, each) for key, each in self.live.items() if each.get("state") == state)
            return
        if kind == "all":
            yield from self.live.items()
        kept = {"slow": self._slow, "failed": self._failed}.get(kind, self._ended)
        yield from kept.items()


def _put(kept: dict[RequestKey, Json], key: RequestKey, request: Json, most: int) -> None:
    kept.pop(key, None)
    kept[key] = request
    if len(kept) > most:
        del kept[next(iter(kept))]


class LiveFleet:
    """The state of a gateway, as its events make it."""

    def __init__(self) -> None:
        self.state: Json = {}
        self.requests = RequestBook()
        self.rates = TokenRates()
        self.first_tokens = FirstTokenTimes()
        self.changes = deque[Json](maxlen=MOST_CHANGES)
        self.left_out = 0
        """Requests that the gateway did not tell of, since :meth:`fill` was told what waits and runs."""
        self._ended = deque[tuple[float, int]]()
        """When, and how many requests were over then."""

    def take(self, event: str, data: Json) -> bool:
        """What an event says. False: it is of no known kind."""
        if event == "snapshot":
            self._take_snapshot(data)
        elif event == "delta" and self.state:
            self.state = apply_patch(self.state, _without(data, _HAPPENINGS))
            self.changes.extend(data.get("changes", ()))
            self.left_out += int(data.get("requests_left_out", 0))
        else:
            return False
        at_s = self.at_s
        for key, counts in data.get("tokens", {}).items():
            self.rates.add(at_s, key, int(counts[0]), int(counts[1]))
        for each in data.get("requests", ()):
            self._note(each, counted="tokens" in data)
        self.rates.pass_to(at_s)
        self._ended.append((at_s, int(self.totals.get("ended", 0))))
        while len(self._ended) > 1 and self._ended[0][0] < at_s - RATE_S:
            self._ended.popleft()
        return True

    def _take_snapshot(self, data: Json) -> None:
        self.state = _without(data, _HAPPENINGS)
        self.requests.replace_live(data.get("requests", ()))
        self.changes.clear()
        self.changes.extend(data.get("changes", ()))
        self.left_out = 0
        self._ended.clear()

    def fill(self, requests: Sequence[Json], *, recent: bool) -> None:
        """Requests as ``GET /admin/requests`` lists them, the latest first. ``recent``: they are all of the
        last time, so rates and percentiles count them, each once; others are only kept."""
        ended = sorted((each for each in requests if each.get("state") not in _LIVE), key=_end_s)
        for each in ended:
            if recent:
                self._note(each, counted=_end_s(each) > self.at_s)
            else:
                self.requests.note(each)
        if recent:
            whole = len(requests) < FILLED_REQUESTS or not ended
            self.rates.known_since(self.at_s - RATE_S if whole else _end_s(ended[0]))

    def _section(self, name: str) -> Mapping[str, Json]:
        found: Mapping[str, Json] = self.state.get(name, {})
        return found

    def _note(self, request: Json, *, counted: bool) -> None:
        new = self.requests.note(request)
        if not new or request.get("state") in _LIVE:
            return
        at_s, model = _end_s(request), request.get("model")
        if request.get("streaming") and request.get("first_byte_s") is not None and model:
            self.first_tokens.add(str(model), at_s, float(request["first_byte_s"]))
        ran, prompt, completion = (request.get(name) for name in ("deployment", "tokens_in", "tokens_out"))
        if not counted and ran and at_s > self.at_s - RATE_S and (prompt or completion):
            self.rates.add(at_s, str(ran), int(prompt or 0), int(completion or 0))

    # --- Reading ---

    @property
    def at_s(self) -> float:
        """When the gateway said the latest, in seconds since 1970."""
        return float(self.state.get("at", 0.0))

    @property
    def agents(self) -> Mapping[str, Json]:
        return self._section("agents")

    @property
    def deployments(self) -> Mapping[str, Json]:
        return self._section("deployments")

    @property
    def models(self) -> Mapping[str, Json]:
        return self._section("models")

    @property
    def totals(self) -> Mapping[str, int]:
        found: Mapping[str, int] = self.state.get("totals", {})
        return found

    @property
    def requests_per_s(self) -> float | None:
        """How many ended in a second; None: not known yet."""
        if len(self._ended) < 2:
            return None
        (first_s, first), (last_s, last) = self._ended[0], self._ended[-1]
        return max(0, last - first) / max(1.0, last_s - first_s)

    def silent_processes(self) -> dict[str, str]:
        """Processes of the gateway that do not answer, and why."""
        processes = self.state.get("processes", {})
        return {name: str(each.get("why", "")) for name, each in processes.items() if not each.get("up")}

    def troubles(self) -> list[str]:
        """What fails on the gateway's machine."""
        return sorted(name for name, fails in self.state.get("troubles", {}).items() if fails)

    def gpus_of(self, facts: Json) -> list[Json]:
        """Those that a deployment runs on; of one that does not say it, all of its agent."""
        return list(self.gpus_by_index(facts).values())

    def gpus_by_index(self, facts: Json) -> Mapping[str, Json]:
        """The same with the index that each has at its host."""
        known: Mapping[str, Json] = self.agents.get(str(facts.get("agent")), {}).get("gpus", {})
        indices = str(facts.get("gpus", "")).split(",")
        return {each: known[each] for each in indices if each in known} or known


def _without(data: Json, names: Iterable[str]) -> Json:
    found = dict(data)
    for name in names:
        found.pop(name, None)
    return found


def _end_s(request: Json) -> float:
    return float(request.get("at", 0.0)) + float(request.get("total_s") or 0.0)
