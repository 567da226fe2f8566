"""What a process has logged so far, as events."""

import json
from pathlib import Path
from typing import Any


def logged_events(log: Path, *names: str) -> list[dict[str, Any]]:
    """The lines of a log in JSON with one of these events, of all events where none is named, in their order.
    What is not JSON, and a last line of which only a part is there yet, is left out: a reader may see a line
    while it is being written."""
    whole = log.read_text().rpartition("\n")[0].splitlines()
    lines = [line for line in whole if line.startswith("{")]
    if names:  # to read the others, each time that somebody waits for one of these, would take longer
        lines = [line for line in lines if any(name in line for name in names)]
    events: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return [each for each in events if not names or each["event"] in names]
