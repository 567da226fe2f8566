"""Fleets as written, and devices with their models."""

import pytest

from gateway.scheduling.learning.devices import CLASSES
from gateway.tools.simulate.devices import DEFAULT_MODEL, MODELS, model_named, pace_of
from gateway.tools.simulate.fleet import DeviceGroup, device_count, fleet_of, fleet_text, scaled
from gateway.tools.simulate.inputs import BadSpec


def test_fleets_are_read_as_written() -> None:
    fleet = fleet_of("4*h100, 2*l4@40ms,t4")
    assert fleet == (DeviceGroup(4, "h100"), DeviceGroup(2, "l4", 0.04), DeviceGroup(1, "t4"))
    assert device_count(fleet) == 7
    assert fleet_of(fleet_text(fleet)) == fleet


def test_a_fleet_is_scaled_by_its_smallest_composition() -> None:
    assert fleet_text(scaled(fleet_of("4*h100,8*l4"), 3)) == "3*h100,6*l4"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not COUNT"),
        ("4xh100", "is not COUNT"),
        ("4*h100,,2*l4", "is not COUNT"),
        ("2*gpu", "no device class is called 'gpu'; there are: .*h100"),
        ("0*l4", "has no device"),
        ("999999*l4", "more than 100,000"),
        ("1*l4@99999ms", "more than 10 s"),
    ],
)
def test_fleets_that_cannot_be_are_told(text: str, words: str) -> None:
    with pytest.raises(BadSpec, match=words):
        fleet_of(text)


@pytest.mark.parametrize("name", ["h100", "a100", "l40s", "a10g", "l4", "t4", "rtx4090"])
def test_the_default_model_runs_on_every_class(name: str) -> None:
    pace = pace_of(CLASSES[name], MODELS[DEFAULT_MODEL])
    assert pace.kv_tokens > 16 * 1024
    assert 8 <= pace.slots <= pace.max_running < pace.chunk_tokens


def test_an_h100_decodes_and_reads_as_its_figures_say() -> None:
    pace = pace_of(CLASSES["h100"], MODELS[DEFAULT_MODEL])
    assert pace.weights_s == pytest.approx(2 * 8.03e9 / (3.35e12 * 0.75))
    assert pace.token_s == pytest.approx(2 * 8.03e9 / (989e12 * 0.5))
    assert pace.context_s == pytest.approx(131_072 / (3.35e12 * 0.75))


def test_weights_of_eight_bits_where_sixteen_do_not_fit() -> None:
    small, large = (pace_of(CLASSES[name], MODELS[DEFAULT_MODEL]) for name in ("t4", "l4"))
    assert small.weights_s * CLASSES["t4"].bandwidth_gb_s == pytest.approx(
        large.weights_s * CLASSES["l4"].bandwidth_gb_s / 2
    )


def test_a_model_that_does_not_fit_is_told() -> None:
    with pytest.raises(BadSpec, match=r"llama-3.1-70b does not fit l4: its weights take 71 GB"):
        pace_of(CLASSES["l4"], MODELS["llama-3.1-70b"])
    with pytest.raises(BadSpec, match="no model is called 'gpt'"):
        model_named("gpt")
