"""The agent of a simulated device that tells each of several gateways what it runs for the others
(PROTOCOL §4.11).

What is told, and when, is decided by the agents' own code. A frame takes half a round trip.
"""

from collections.abc import Callable

from gateway.tools.simulate.calendar import Calendar
from gateway.tools.simulate.fleet import SimulatedDevice
from gateway.tools.simulate.gateway import SimulatedGateway, SimulatedRequest
from shared.process.timers import Cancellable
from shared.protocol.other_requests import OtherSessions, OthersTeller, ToldRequest
from shared.protocol.others import Expected, Others


class ToldOthers:
    """Of one device. ``gateways`` are in the order in which the device is ``seen`` by them."""

    def __init__(
        self, calendar: Calendar, device: SimulatedDevice, gateways: list[SimulatedGateway], every_s: float
    ) -> None:
        """A gateway is told no more often than every ``every_s``."""
        self._calendar = calendar
        self._device = device
        self._gateways = gateways
        self._every_s = every_s
        self._others = OtherSessions(calendar.time)
        self._running: dict[int, ToldRequest] = {}

    def begin(self) -> None:
        """The agent is there."""
        self._others = OtherSessions(self._calendar.time)
        self._running = {}
        for gateway, seen in zip(self._gateways, self._device.seen, strict=True):
            send = self._line(gateway, seen.view.key, seen.one_way_s, self._device.epoch)
            teller = OthersTeller(self._calendar.time, self._call_later, send, every_s=self._every_s)
            self._others.add(gateway, teller)

    def end(self) -> None:
        """The agent is gone with all that ran there."""
        for gateway in self._gateways:
            self._others.remove(gateway)

    def began(self, flight: SimulatedRequest, now: float) -> None:
        """The engine was given the request."""
        item = flight.item
        expected = Expected.of(item.input_tokens, item.output_tokens, item.prefix)
        told = self._others.told(flight.gateway, self._device.seen[0].view.key, expected, now)
        self._running[flight.run.number] = told
        self._others.began(told)

    def first_token(self, flight: SimulatedRequest) -> None:
        """Its first token has come."""
        self._others.first_token(self._running[flight.run.number])

    def ended(self, flight: SimulatedRequest) -> None:
        """It has left the engine."""
        self._others.ended(self._running.pop(flight.run.number))

    def _line(
        self, gateway: SimulatedGateway, key: str, one_way_s: float, epoch: int
    ) -> Callable[[Others], int]:
        def arrive(others: Others, now: float) -> None:
            if self._device.epoch == epoch:
                gateway.take_others(key, others, now)

        def send(others: Others) -> int:
            self._calendar.plan(self._calendar.now_s + one_way_s, arrive, others)
            return len(others.to_payload())

        return send

    def _call_later(self, delay_s: float, call: Callable[[], None]) -> Cancellable:
        return self._calendar.call_at(self._calendar.now_s + delay_s, call)
