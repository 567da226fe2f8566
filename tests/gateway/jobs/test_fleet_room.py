"""As many jobs are claimed as the fleet can begin now, and a few more."""

import pytest

from gateway.jobs.fleet_room import FleetRoom
from tests.gateway.fleet.fleet import Fleet, deployment


def room_of(fleet: Fleet, waiting: int = 0) -> FleetRoom:
    aliases = {"alias": ("m", "other")}
    return FleetRoom(fleet.registry.index, lambda model: waiting, lambda name: aliases.get(name, (name,)))


def fleet_with(slots: int) -> Fleet:
    fleet = Fleet()
    fleet.connect("a", deployment(slots=slots))
    fleet.advance(120.0)  # slow start is over
    return fleet


def test_jobs_of_a_model_that_nobody_serves_stay_in_the_store() -> None:
    assert room_of(Fleet()).most("m", 0) == 0


@pytest.mark.parametrize(("slots", "most"), [(1, 2), (4, 8)])
def test_free_slots_and_a_little_ahead(slots: int, most: int) -> None:
    fleet = fleet_with(slots)
    assert room_of(fleet).most("m", 0) == most
    assert room_of(fleet).most("alias", 0) == most
    assert room_of(fleet).most("m", most) <= 0


def test_less_is_ahead_where_jobs_take_long() -> None:
    fleet = fleet_with(4)
    fleet.registry.index.models["m"].hold_s = 60.0
    assert room_of(fleet).most("m", 0) == 5


def test_clients_that_wait_come_first_and_one_job_waits_with_them() -> None:
    fleet = fleet_with(2)
    assert room_of(fleet, waiting=50).most("m", 0) == 1
    assert room_of(fleet, waiting=50).most("m", 1) <= 0
