"""A clock that nobody sets, and that all processes of a host share."""

import time


def running_s() -> float:
    """Seconds since the host was booted, where that can be told with the time it was asleep included; else of
    the monotonic clock. What counts time that others count as well must not stop while the host sleeps."""
    boot_time: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_time is None else time.clock_gettime(boot_time)
