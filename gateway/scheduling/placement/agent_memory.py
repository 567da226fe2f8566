"""One agent's memory for models, during one round of decisions (SCHEDULING §5)."""

from collections.abc import Collection, Iterable

from gateway.scheduling.placement.data import AgentPlaces, LoadablePlace, Residence
from gateway.scheduling.placement.memory import Troubles


class AgentMemory:
    """What stays there and what is about to go, as far as was decided in this round. Memory that is not
    known counts as none: the agent says no, and that is remembered (:class:`Troubles`)."""

    def __init__(self, host: AgentPlaces, troubles: Troubles) -> None:
        self.host = host
        self._troubles = troubles
        self.staying: dict[str, LoadablePlace] = {}
        self.leaving: dict[str, LoadablePlace] = {}
        for place in host.places:
            if place.residence in (Residence.LOADED, Residence.LOADING):
                self.staying[place.key] = place
            elif place.residence is Residence.LEAVING:
                self.leaving[place.key] = place
        self._staying_bytes = _bytes(self.staying.values())
        self._leaving_bytes = _bytes(self.leaving.values())

    def holds_now(self, place: LoadablePlace) -> bool:
        """It fits beside all that is there."""
        return self._fits(place, self._staying_bytes + self._leaving_bytes, (*self.staying, *self.leaving))

    def holds(self, place: LoadablePlace, without: Collection[str] = ()) -> bool:
        """It fits beside what stays, less ``without``."""
        if not without:
            return self._fits(place, self._staying_bytes, self.staying)
        less = _bytes(self.staying[key] for key in without)
        return self._fits(place, self._staying_bytes - less, [k for k in self.staying if k not in without])

    def could_ever_hold(self, place: LoadablePlace) -> bool:
        """It fits beside what is never unloaded."""
        pinned = _bytes(each for each in self.staying.values() if each.pinned)
        return self.host.memory_bytes is None or _need(place) + pinned <= self.host.memory_bytes

    def expect(self, place: LoadablePlace) -> None:
        """It will be there: what it takes is no longer to be had."""
        self.staying[place.key] = place
        self._staying_bytes += _need(place)

    def give_up(self, victim: LoadablePlace) -> None:
        """It is to go, and is still there."""
        self.leaving[victim.key] = self.staying.pop(victim.key)
        self._staying_bytes -= _need(victim)
        self._leaving_bytes += _need(victim)

    def _fits(self, place: LoadablePlace, taken_bytes: int, beside: Iterable[str]) -> bool:
        memory_bytes = self.host.memory_bytes
        if memory_bytes is not None and taken_bytes + _need(place) > memory_bytes:
            return False
        return self._troubles.fits_beside(place.key, beside)


def _need(place: LoadablePlace) -> int:
    return place.memory_bytes or 0


def _bytes(places: Iterable[LoadablePlace]) -> int:
    return sum(map(_need, places))
