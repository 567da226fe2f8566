"""Jobs that end, and a clock that stands still unless it is moved."""

from tests.gateway.storage.jobs.conftest import clock, desk

__all__ = ["clock", "desk"]
