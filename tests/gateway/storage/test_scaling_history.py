"""Loads and forecasts, in each kind of database."""

import math

import pytest

from gateway.scheduling.scaling.bursts import PIECES
from gateway.storage import Store
from gateway.storage.scaling_history import DAY_STEPS, STEP_BYTES, STEP_S, KeptForecast, NotedLoad

DAY_S = 86_400
TODAY_S = 20_000 * DAY_S
L4, H100 = ("m", "l4"), ("m", "h100")


@pytest.fixture
def store(any_store: Store) -> Store:
    return any_store


def load(step: int, value: float, name: tuple[str, str] = L4, bursts: bytes = b"") -> NotedLoad:
    return NotedLoad(*name, TODAY_S + (step + 0.5) * STEP_S, value, bursts)


def bursts(value: int) -> bytes:
    return bytes([value]) * STEP_BYTES


def test_loads_are_read_by_step_and_what_nobody_noted_is_not_known(store: Store) -> None:
    history = store.scaling_history
    history.note([load(0, 1.5), load(2, 2.5), load(DAY_STEPS, 4.0), load(1, 8.0, H100)])
    assert history.names() == [H100, L4]
    start_s, values = history.read([L4], TODAY_S)[L4]
    assert (start_s, len(values)) == (TODAY_S, 2 * DAY_STEPS)
    assert (values[0], values[2], values[DAY_STEPS]) == (1.5, 2.5, 4.0)
    assert math.isnan(values[1])
    assert set(history.read([L4, H100], TODAY_S + DAY_S)) == {L4}


def test_several_processes_that_note_the_same_step_count_once(store: Store) -> None:
    history = store.scaling_history
    history.note([load(0, 1.5)])
    history.note([load(0, 3.0), load(1, 1.0)])
    _, values = history.read([L4], TODAY_S)[L4]
    assert values[:2] == [1.5, 1.0]


def test_days_and_forecasts_of_before_are_forgotten(store: Store) -> None:
    history = store.scaling_history
    history.note([load(day * DAY_STEPS, 1.0, bursts=bursts(1)) for day in range(3)])
    history.keep_forecasts([KeptForecast(*L4, 5.0, {}), KeptForecast(*H100, 9.0, {})])
    assert history.forget(TODAY_S + DAY_S + 7, 8.0, TODAY_S + 2 * DAY_S + 7) == 4
    assert history.read([L4], 0.0)[L4][0] == TODAY_S + DAY_S
    assert history.read_bursts([L4], 0.0)[L4][0] == TODAY_S + 2 * DAY_S
    assert [each.device for each in history.forecasts(0.0)] == ["h100"]


def test_a_forecast_takes_the_place_of_the_one_before_and_only_new_ones_are_read(store: Store) -> None:
    history = store.scaling_history
    history.keep_forecasts([])
    history.keep_forecasts([KeptForecast(*L4, 5.0, {"state": "shadow"})])
    history.keep_forecasts([KeptForecast(*L4, 6.0, {"state": "acting"})])
    assert history.forecasts(5.5) == [KeptForecast(*L4, 6.0, {"state": "acting"})]
    assert history.forecasts(6.0) == []


def test_bursts_are_read_by_step_and_what_nobody_noted_is_zeros(store: Store) -> None:
    history = store.scaling_history
    history.note([load(0, 1.5, bursts=bursts(1)), load(1, 1.5), load(2 * DAY_STEPS, 2.0, bursts=bursts(3))])
    history.note([load(0, 1.5, bursts=bursts(9)), load(2, 2.5, bursts=bursts(2)), load(3, 2.5, H100)])
    start_s, found = history.read_bursts([L4, H100], TODAY_S)[L4]
    assert (start_s, len(found)) == (TODAY_S, 3 * DAY_STEPS * STEP_BYTES)
    assert found[: 3 * STEP_BYTES] == bursts(1) + bursts(0) + bursts(2), "the first that was noted stays"
    assert found[2 * DAY_STEPS * STEP_BYTES :][: 2 * STEP_BYTES] == bursts(3) + bursts(0)
    assert set(history.read_bursts([L4, H100], TODAY_S)) == {L4}
    assert history.read_bursts([L4], TODAY_S + DAY_S)[L4][0] == TODAY_S + 2 * DAY_S


def test_a_process_of_an_earlier_version_notes_loads_without_bursts(store: Store) -> None:
    history = store.scaling_history
    history.note([load(0, 1.5), load(1, 2.0, bursts=b"short")])
    assert history.read([L4], TODAY_S)[L4][1][:2] == [1.5, 2.0]
    assert history.read_bursts([L4], TODAY_S) == {}


def test_a_step_has_a_byte_for_each_of_its_pieces() -> None:
    assert STEP_BYTES == PIECES, "others would not be kept"
