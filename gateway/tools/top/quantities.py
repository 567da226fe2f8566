"""Numbers as a narrow column shows them. Pure."""

_EIGHTHS = " ▏▎▍▌▋▊▉"
_GIB = 1024**3


def seconds(value: float) -> str:
    """A duration in at most seven characters: ``3.2 ms``, ``850 ms``, ``1.25 s``, ``42.0 s``, ``3m07s``,
    ``2h05m``."""
    if value < 0.01:
        return f"{value * 1000:.1f} ms"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value < 9.995:
        return f"{value:.2f} s"
    if value < 99.95:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 100 else f"{hours / 24:.0f}d"


def count(value: float) -> str:
    """A number or a rate in at most five characters: ``0``, ``0.4``, ``120``, ``4520``, ``12.3k``."""
    if value == int(value) and value < 10_000:
        return str(int(value))
    if value < 10:
        return f"{value:.1f}"
    if value < 9_999.5:
        return f"{value:.0f}"
    for unit in "kMG":
        value /= 1000
        if value < 99.95:
            return f"{value:.1f}{unit}"
        if value < 999.5:
            return f"{value:.0f}{unit}"
    return f"{value:.0f}G"


def percent(share: float) -> str:
    return f"{share * 100:.0f}%"


def gibibytes(value: float) -> str:
    """Bytes as GiB, without the unit."""
    found = value / _GIB
    return f"{found:.1f}" if found < 9.95 else f"{found:.0f}"


def bar(share: float | None, width: int) -> str:
    """``share`` as a bar of so many cells; blank where it is not known."""
    if share is None:
        return ""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")
