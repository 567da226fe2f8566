"""Regions: which of them a request may use now (`docs/regions.md`, *Nearest first*). Pure: no clock, no I/O,
nothing random."""
