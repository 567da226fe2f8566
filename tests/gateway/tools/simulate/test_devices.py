"""Devices that somebody has measured."""

import pytest

from gateway.tools.simulate.devices import DEFAULT_MODEL, MODELS, own_device
from gateway.tools.simulate.fleet import DeploymentBuild, deployments_of, fleet_of
from gateway.tools.simulate.inputs import BadSpec


def test_a_measured_device_is_simulated_as_measured() -> None:
    name, pace = own_device("mine:weights_s=0.02, token_s=0.0002,kv_tokens=40000,max_running=4")
    fleet = fleet_of("2*mine,1*l4", {name})
    sites = deployments_of(fleet, MODELS[DEFAULT_MODEL], 16, DeploymentBuild(own={name: pace}), late=True)
    assert [site.engine.pace == pace for site in sites] == [True, True, False]
    assert (pace.weights_s, pace.token_s, pace.kv_tokens, pace.slots) == (0.02, 0.0002, 40_000, 4)
    assert sites[0].view.device == "mine"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mine", "is not NAME"),
        ("My:weights_s=1", "is not NAME"),
        ("mine:speed=1", "no member is called 'speed'; there are: step_s, weights_s"),
        ("mine:weights_s=1", "token_s is missing"),
        ("mine:weights_s=-1,token_s=1,kv_tokens=9", "weights_s must be greater than or equal to 0, not '-1'"),
        ("mine:weights_s=nan,token_s=1,kv_tokens=9", "weights_s must be a finite number, not 'nan'"),
        ("mine:kv_tokens=1.5,weights_s=1,token_s=1", "kv_tokens must be a valid integer"),
        ("mine:step_s=0,weights_s=0,token_s=1,kv_tokens=9", "a step must take some time"),
        (
            "mine:weights_s=1,token_s=1,kv_tokens=9,chunk_tokens=8",
            "chunk_tokens must be more than max_running",
        ),
    ],
)
def test_a_device_that_cannot_be_is_told(text: str, words: str) -> None:
    with pytest.raises(BadSpec, match=words):
        own_device(text)
