"""How far a prompt has come, from the messages of ComfyUI's ``/ws``. Pure.

Newer servers say it whole with each ``progress_state``; all of them say which node is ``executing``, and with
``progress`` how many of its steps are done. Previews are binary messages.
"""

import struct
from collections.abc import Mapping
from typing import Any

from shared.protocol.progress import Preview, Progress, progress

PREVIEW_IMAGE = 1
PREVIEW_IMAGE_WITH_METADATA = 4
"""The kinds of binary messages that are previews (``BinaryEventTypes`` of ComfyUI's protocol.py)."""

_FORMATS = {1: "image/jpeg", 2: "image/png"}


class PromptProgress:
    """The progress of one prompt. Every node that is not cached counts the same."""

    def __init__(self, prompt: Mapping[str, Any]) -> None:
        self._titles = {node_id: _title(node) for node_id, node in prompt.items()}
        self._shares: dict[str, float] = {}
        """Node → how much of it is done, from 0 to 1; nodes of the prompt only."""
        self._cached = 0
        self._now = ""
        """The node that runs."""
        self._most = 0.0

    def feed(self, kind: str, data: Mapping[str, Any]) -> Progress | None:
        """Take a message of this prompt. None: it says nothing of progress."""
        if kind == "execution_cached":
            nodes = data.get("nodes")
            named = {str(each) for each in nodes} if isinstance(nodes, list) else set()
            self._cached = len(named & self._titles.keys())
            return None
        if kind == "executing":
            return self._executing(data)
        if kind == "progress":
            return self._step(str(data.get("node") or self._now), data)
        if kind == "progress_state":
            return self._states(data.get("nodes"))
        return None

    def _executing(self, data: Mapping[str, Any]) -> Progress | None:
        node = data.get("display_node") or data.get("node")
        if node is None:
            return None
        if self._now in self._titles and self._now != node:
            self._shares[self._now] = 1.0
        self._now = str(node)
        return self._told(self._titles.get(self._now, ""))

    def _step(self, node: str, data: Mapping[str, Any]) -> Progress | None:
        value, most = _number(data.get("value")), _number(data.get("max"))
        if most <= 0:
            return None
        if node in self._titles:
            self._shares[node] = min(1.0, value / most)
        return self._told(self._words(node, value, most))

    def _states(self, nodes: object) -> Progress | None:
        if not isinstance(nodes, dict):
            return None
        words = ""
        for node_id, state in nodes.items():
            if not isinstance(state, dict):
                continue
            node = str(state.get("display_node_id") or node_id)
            value, most = _number(state.get("value")), _number(state.get("max"))
            share = min(1.0, value / most) if most > 0 else 0.0
            if state.get("state") == "finished":
                share = 1.0
            if node in self._titles:
                self._shares[node] = (
                    share if node == node_id else max(share * 0.5, self._shares.get(node, 0.0))
                )
            if state.get("state") == "running":
                words = self._words(node, value, most)
        return self._told(words)

    def _words(self, node: str, value: float, most: float) -> str:
        title = self._titles.get(node, "")
        return f"{title}: {value:g} of {most:g}" if most > 1 else title

    def _told(self, words: str) -> Progress:
        """It never goes back: a node inside a loop begins anew."""
        total = max(1, len(self._titles) - self._cached)
        self._most = max(self._most, min(1.0, sum(self._shares.values()) / total))
        return progress(self._most, words)


def read_preview(message: bytes) -> Preview | None:
    """The picture in a binary message; None: it is no preview, or malformed."""
    if len(message) < 8:
        return None
    event, number = struct.unpack_from(">II", message)
    if event == PREVIEW_IMAGE and number in _FORMATS:
        return Preview(_FORMATS[number], bytes(message[8:]))
    if event == PREVIEW_IMAGE_WITH_METADATA and number <= len(message) - 8:
        picture = bytes(message[8 + number :])
        return Preview("image/png" if picture.startswith(b"\x89PNG") else "image/jpeg", picture)
    return None


def _title(node: Any) -> str:
    meta = node.get("_meta") if isinstance(node, dict) else None
    title = meta.get("title") if isinstance(meta, dict) else None
    return str(title or (node.get("class_type", "") if isinstance(node, dict) else ""))[:80]


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
