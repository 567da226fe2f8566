"""The processes of this gateway as the rows in their store say (PROTOCOL §7.5). Pure; times in seconds."""

from collections.abc import Callable, Sequence

from gateway.cluster.peers import UNKNOWN_INCARNATION, told_to
from gateway.storage.processes import ProcessReport
from shared.protocol.peers import GatewayPeer

BEAT_S = 2.0
"""Between two times that a process writes its row."""

DEAD_S = 6.0
"""A process whose row was not written for so long is dead."""


class ProcessDirectory:
    """Implements :class:`shared.protocol.peers.PeerDirectory` and
    :class:`gateway.quota.pools.ProcessCount`.

    While no report comes, what is known stays. After such a time nobody is taken to be dead for ``DEAD_S``:
    the others could not write their rows either.
    """

    def __init__(
        self, own: GatewayPeer, named: Sequence[GatewayPeer] = (), *, least: int = 1, begins_s: float = 0.0
    ) -> None:
        """``named`` are processes that the settings name beside this one: they count as there until a row
        says otherwise. There are ``least`` processes, however few have rows. ``begins_s`` is now, on the
        clock of :meth:`update`."""
        self.own = own
        self.changed: Callable[[], None] = lambda: None
        """Called when there are other processes than before, or other incarnations or addresses of them."""
        self._least = least
        self._unseen = {peer.process: peer for peer in named if peer.process != own.process}
        self._others: dict[str, GatewayPeer] = {}
        self._reported_s = self._steady_since_s = begins_s

    def peers_for(self, agent: str) -> Sequence[GatewayPeer]:
        """See :func:`gateway.cluster.peers.told_to`."""
        return told_to(agent, self.own, [*self._others.values(), *self._unseen.values()])

    def is_there(self, process: str) -> bool:
        """Whether another process of that name is taken to be there."""
        return process in self._others

    @property
    def accompanied(self) -> bool:
        """Whether another process is taken to be there."""
        return bool(self._others)

    @property
    def count(self) -> int:
        """Processes that have rows, or as many as the settings say if that is more."""
        return max(self._least, 1 + len(self._others))

    @property
    def index(self) -> int:
        """This process's place among them, in the order of their names."""
        return sum(name < self.own.process for name in self._others)

    def update(self, report: ProcessReport, now: float) -> None:
        """Take up what the store says at ``now``, on a clock of this process that nobody sets."""
        if now - self._reported_s > DEAD_S - BEAT_S:
            self._steady_since_s = now
        self._reported_s = now
        before = self._others, dict(self._unseen)
        others: dict[str, GatewayPeer] = {}
        if now - self._steady_since_s < DEAD_S:
            others |= self._others
        for record in report.records:
            if record.id == self.own.process:
                continue
            known = self._unseen.pop(record.id, None)
            if abs(report.now - record.heard) < DEAD_S:
                url = record.url or (None if known is None else known.url)
                others[record.id] = GatewayPeer(record.id, record.incarnation, url)
        rows = {record.id for record in report.records}
        self._others = {name: each for name, each in others.items() if name in rows}
        if (self._others, self._unseen) != before:
            self.changed()


def named_peers(urls: dict[str, str | None]) -> list[GatewayPeer]:
    """Processes that are known by name only (:func:`gateway.cluster.peers.read_peers`)."""
    return [GatewayPeer(name, UNKNOWN_INCARNATION, url) for name, url in urls.items()]
