"""What is left of limits, as header fields (OpenAI's guide on rate limits, "Rate limits in
headers").

Values: whole numbers, and times as ``6m0s``, ``1s`` or ``12ms``.
"""

import math
from collections.abc import Sequence

from gateway.quota.limit_state import LimitState
from gateway.quota.window import MinuteWindow

HeaderList = list[tuple[bytes, bytes]]

_NAMES = {
    what: tuple(b"x-ratelimit-%s-%s" % (part, what) for part in (b"limit", b"remaining", b"reset"))
    for what in (b"requests", b"tokens")
}


def limit_headers(holders: Sequence[LimitState], now: float) -> HeaderList:
    """Of each limit per minute, requests and tokens, that which has least left; nothing where there is
    none."""
    requests = [holder.requests for holder in holders if holder.requests is not None]
    tokens = [holder.tokens for holder in holders if holder.tokens is not None]
    return _fields(b"requests", requests, now) + _fields(b"tokens", tokens, now)


def _fields(what: bytes, windows: list[MinuteWindow], now: float) -> HeaderList:
    if not windows:
        return []
    window = windows[0]
    if len(windows) > 1:
        window = min(windows, key=lambda each: (each.remaining(now), each.limit))
    limit, remaining, reset = _NAMES[what]
    return [
        (limit, b"%d" % window.limit),
        (remaining, b"%d" % window.remaining(now)),
        (reset, duration(window.reset_s(now))),
    ]


def duration(seconds: float) -> bytes:
    """Rounded up to a millisecond."""
    total_ms = math.ceil(seconds * 1000 - 1e-6)
    if total_ms < 1000:
        return b"%dms" % total_ms if total_ms > 0 else b"0s"
    minutes, ms = divmod(total_ms, 60_000)
    text = (b"%.3f" % (ms / 1000)).rstrip(b"0").rstrip(b".") + b"s"
    if minutes:
        text = b"%dm%s" % (minutes % 60, text)
    return b"%dh%s" % (minutes // 60, text) if minutes >= 60 else text
