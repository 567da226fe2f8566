"""Asks a gateway for jobs, batches and files, and times it."""

import json
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.processes import Gateway, fetch

CHAT = "/v1/chat/completions"
AT_ONCE = 1000
"""Jobs in one request."""
_PATIENCE_S = 1800.0
_LOOK_S = 0.25


@dataclass(slots=True)
class JobClient:
    """Of one key. Every method raises OSError for an answer from 400 on."""

    gateway: Gateway
    key: str
    took_s: dict[str, list[float]] = field(default_factory=dict)
    """What was timed, by name."""

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        self.took_s.setdefault(name, []).append(time.perf_counter() - began_s)

    def ask(self, path: str, body: object = None) -> Any:
        """A POST if there is a body."""
        return fetch(f"{self.gateway.url}{path}", body=body, key=self.key, timeout_s=300.0)

    def submit(self, bodies: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
        """Chats as jobs, as many requests as it takes."""
        made: list[dict[str, Any]] = []
        for start in range(0, len(bodies), AT_ONCE):
            jobs = [{"path": CHAT, "body": body} for body in bodies[start : start + AT_ONCE]]
            with self.timed("submit"):
                made += self.ask("/v1/jobs", {"jobs": jobs})["data"]
        return made

    def open_jobs(self) -> bool:
        """Whether any waits or runs."""
        return bool(self.ask("/v1/jobs?status=queued,running&limit=1")["data"])

    def until_ended(self) -> None:
        """Returns once none does."""
        while self.open_jobs():
            time.sleep(_LOOK_S)

    def failed_jobs(self) -> int:
        """Up to a hundred."""
        return len(self.ask("/v1/jobs?status=failed,expired,cancelled&limit=100")["data"])

    def upload(self, content: bytes) -> str:
        """A file for a batch, and its id."""
        edge = "a-boundary-of-the-form"
        part = '--{0}\r\ncontent-disposition: form-data; name="{1}"{2}\r\n\r\n'
        form = part.format(edge, "purpose", "") + "batch\r\n"
        form += part.format(edge, "file", '; filename="lines.jsonl"')
        data = form.encode() + content + f"\r\n--{edge}--\r\n".encode()
        headers = {
            "content-type": f"multipart/form-data; boundary={edge}",
            "authorization": f"Bearer {self.key}",
        }
        request = urllib.request.Request(f"{self.gateway.url}/v1/files", data, headers)
        with urllib.request.urlopen(request, timeout=300.0) as response:
            return str(json.loads(response.read())["id"])

    def batch(self, bodies: Sequence[Mapping[str, object]]) -> str:
        """A batch of chats, and its id; its file is not read yet."""
        lines = [
            {"custom_id": str(number), "method": "POST", "url": CHAT, "body": body}
            for number, body in enumerate(bodies)
        ]
        file_id = self.upload(b"\n".join(json.dumps(line).encode() for line in lines))
        asked = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        return str(self.ask("/v1/batches", asked)["id"])

    def metric(self, name: str) -> float:
        """A sample of ``/metrics`` without labels."""
        request = urllib.request.Request(f"{self.gateway.url}/metrics")
        request.add_header("authorization", f"Bearer {self.key}")
        with urllib.request.urlopen(request, timeout=60.0) as response:
            for line in response.read().decode().splitlines():
                if line.startswith(f"{name} "):
                    return float(line.partition(" ")[2])
        return 0.0

    def until_queued(self, jobs: int) -> None:
        """Returns once at least so many wait. Raises TimeoutError where they never do."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while (waiting := self.metric("trunkline_jobs_queued")) < jobs:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{waiting:.0f} of {jobs} jobs wait after {_PATIENCE_S:.0f} s")
            time.sleep(_LOOK_S)


def chat_of(model: str, text: str, tokens: int, tokens_per_s: float = 0.0) -> dict[str, object]:
    """A chat; a scripted engine computes its answer at that pace, in one piece or streamed."""
    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
    }
    if tokens_per_s:
        body["script"] = {"tokens_per_s": tokens_per_s, "whole_tokens_per_s": tokens_per_s}
    return body
