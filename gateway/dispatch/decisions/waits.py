"""Why the requests of each model waited, and when: noted at the end of a turn in which some still wait."""

from collections import deque

MOST_NOTES = 32
"""Changes that are kept for each model; a request that waits longer has the last ones."""

MOST_MODELS = 4096

LEAST_S = 0.001
"""Shorter waits have no reason."""


class WaitLog:
    """One for a dispatcher. Times are of the gateway's clock."""

    def __init__(self) -> None:
        self.notes: dict[str, deque[tuple[float, str]]] = {}
        """By model: since when its requests wait for which reason; none while the reason is empty."""

    def note(self, model: str, code: str, now: float) -> None:
        """From now on requests for ``model`` wait for this reason."""
        notes = self.notes.get(model)
        if notes is None:
            if len(self.notes) >= MOST_MODELS:
                del self.notes[next(iter(self.notes))]
            notes = self.notes[model] = deque(maxlen=MOST_NOTES)
        if not notes or notes[-1][1] != code:
            notes.append((now, code))

    def clear(self, model: str, now: float) -> None:
        """Nobody waits any more for ``model``, of which there are notes."""
        self.note(model, "", now)

    def between(self, model: str, start_s: float, end_s: float) -> tuple[tuple[str, float], ...]:
        """Why requests waited in this time, and for how many seconds, in order."""
        notes = self.notes.get(model)
        if notes is None or end_s - start_s < LEAST_S:
            return ()
        found: list[tuple[str, float]] = []
        until_s = end_s
        for since_s, code in reversed(notes):
            if since_s < end_s:
                lasted_s = until_s - (since_s if since_s > start_s else start_s)
                if code and lasted_s >= LEAST_S:
                    found.append((code, lasted_s))
                if since_s <= start_s:
                    break
                until_s = since_s
        found.reverse()
        return tuple(found)
