"""What every peer is put through."""

from dataclasses import dataclass

MODEL = "fake-llm"
BODY_PATH = f"/engines/{MODEL}"
"""Where ours takes any path of an engine; the others pass it on as it is, and the engine answers both."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One load, and the engine's pace under it."""

    name: str
    about: str
    kind: str
    """The load's mode: unary, stream, down, up."""
    arguments: tuple[str, ...]
    interval_us: int = 0
    step: bool = False
    tokens_per_s: float = 0.0
    """What the engine offers, where it has a pace."""

    @property
    def unit(self) -> str:
        """What its CPU time is divided by."""
        return {"unary": "request", "stream": "token"}.get(self.kind, "GB")


@dataclass(frozen=True, slots=True)
class Scale:
    """How large; by default as the documented figures are."""

    seconds: float = 6.0
    warm_s: float = 1.0
    """Before each window, and of each kind before all."""
    streams: int = 1000
    connections: int = 64
    tokens_per_s: int = 20
    stream_tokens: int = 200
    ramp_s: float = 5.0
    body_bytes: int = 10**9


def workloads(scale: Scale) -> tuple[Workload, ...]:
    """All of them, in the order they are run."""
    many, few, warm = str(scale.connections), f"{scale.seconds:g}", f"{scale.warm_s:g}"
    paced: tuple[str, ...] = (
        "-c",
        str(scale.streams),
        "-n",
        str(scale.stream_tokens),
        "-g",
        f"{scale.ramp_s:g}",
    )
    paced += ("-w", f"{scale.ramp_s + scale.warm_s:g}", "-d", few)
    offered = float(scale.streams * scale.tokens_per_s)
    interval_us = 1_000_000 // scale.tokens_per_s
    pace = f"{scale.streams:,} streams of {scale.tokens_per_s} tokens a second"
    body = ("-c", "1", "-q", "1", "-w", "0", "-d", "120", "-B", str(scale.body_bytes))
    size = f"{scale.body_bytes / 1e9:g} GB"
    down = ("-u", f"{BODY_PATH}/body?bytes={scale.body_bytes}")
    return (
        Workload(
            "unary", f"1 KB in, 1 KB out, {many} connections", "unary", ("-c", many, "-w", warm, "-d", few)
        ),
        Workload("unary1", "the same, one connection", "unary", ("-c", "1", "-w", warm, "-d", few)),
        Workload("paced", pace, "stream", paced, interval_us, tokens_per_s=offered),
        Workload("step", f"{pace}, all ticking together", "stream", paced, interval_us, True, offered),
        Workload(
            "saturated",
            f"{many} streams as fast as they go",
            "stream",
            ("-c", many, "-n", "300", "-w", warm, "-d", few),
        ),
        Workload("down", f"a response of {size}", "down", (*body, *down)),
        Workload("up", f"a request of {size}", "up", (*body, "-u", f"{BODY_PATH}/upload")),
    )
