"""What is set of regions is what decides."""

from math import inf

from gateway.app.regions import region_settings
from gateway.runtime.config.regions import RegionsTable
from gateway.scheduling.regions.settings import RegionSettings, TrafficShift


def test_defaults_are_the_same_on_both_sides() -> None:
    assert region_settings(RegionsTable()) == RegionSettings()


def test_every_setting_is_handed_on() -> None:
    table = RegionsTable.model_validate(
        {
            "label": "site",
            "home": "eu",
            "prices": {"us": inf},
            "pilot": ["dr"],
            "shifts": [{"to": "ap", "share": 0.25, "model": "llama*", "tenant": "acme"}],
            "failback_s": 5,
        }
    )
    found = region_settings(table)
    assert (found.label, found.home) == ("site", "eu")
    assert (set(found.never), set(found.pilot)) == ({"us"}, {"dr"})
    assert found.shifts == (TrafficShift("ap", 0.25, "llama*", "acme"),)
    assert found.failback_s == 5.0
