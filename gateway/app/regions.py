"""The slice of the settings that says which regions requests go to."""

from dataclasses import fields

from gateway.runtime.config.regions import RegionsTable
from gateway.scheduling.regions.settings import RegionSettings, TrafficShift


def region_settings(table: RegionsTable) -> RegionSettings:
    """The slice of the settings that the choice among regions gets."""
    same = {field.name for field in fields(RegionSettings)} - {"home", "pilot", "prices", "shifts"}
    return RegionSettings(
        **table.model_dump(include=same),
        home=table.home or "",
        pilot=frozenset(table.pilot),
        prices=dict(table.prices),
        shifts=tuple(TrafficShift(**shift.model_dump()) for shift in table.shifts),
    )
