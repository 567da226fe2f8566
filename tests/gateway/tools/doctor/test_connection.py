"""What is said of a gateway's addresses."""

import errno
import os
import socket

import pytest

from gateway.tools.doctor import connection
from gateway.tools.doctor.connection import ConnectionChecks
from gateway.tools.doctor.way import Address, Target, Way
from shared.process.checks import CheckOutcome, CheckState


class TwoAddresses(Way):
    def addresses(self) -> list[Address]:
        return [(socket.AF_INET6, "2001:db8::1", 443), (socket.AF_INET, "192.0.2.1", 443)]


def looked_at(monkeypatch: pytest.MonkeyPatch, **errors: int) -> CheckOutcome:
    """With the errors of IPv6 and IPv4; a family without one connects."""

    def connect(address: Address, timeout_s: float) -> socket.socket:
        number = errors.get("v6" if ":" in address[1] else "v4")
        if number is not None:
            raise OSError(number, os.strerror(number))
        return socket.socket()

    monkeypatch.setattr(connection, "connect", connect)
    return ConnectionChecks(TwoAddresses(Target.of("https://gw.example.com"))).connect()


@pytest.mark.parametrize("number", [errno.ENETUNREACH, errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_a_host_without_ipv6_is_not_told_to_remove_the_gateways_address(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    found = looked_at(monkeypatch, v6=number)
    assert found.state is CheckState.OK
    assert found.words.endswith("this host has no network that leads to 2001:db8::1.")
    assert list(found.facts["reached"]) == ["192.0.2.1"]


def test_an_address_at_which_nobody_listens_is_to_be_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked_at(monkeypatch, v6=errno.ECONNREFUSED)
    assert found.state is CheckState.WARNING
    assert "Remove the addresses" in found.remedy
    assert looked_at(monkeypatch, v6=errno.ENETUNREACH, v4=errno.ECONNREFUSED).state is CheckState.FAILED
