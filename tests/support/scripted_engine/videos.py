"""Videos as engines make them by themselves: an id at once, progress when asked, the bytes at the end."""

from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.support.scripted_engine.script import Script

PATH = "/v1/videos"

Answer = tuple[int, bytes, str]
"""Status, body, content type."""


def video_bytes(size: int, seed: str = "") -> bytes:
    """A film of so many bytes, another one for each ``seed``."""
    line = f"film {seed} ".encode() + bytes(range(256))
    return (line * (size // len(line) + 1))[:size]


@dataclass
class MadeVideos:
    """Of one engine."""

    videos: dict[str, tuple[dict[str, Any], Script]] = field(default_factory=dict)
    looks: dict[str, int] = field(default_factory=dict)

    def create(self, video_id: str, fields: dict[str, Any], script: Script) -> Answer:
        """The answer to a request for one: its bytes where the script says no steps."""
        prompt = str(fields.get("prompt", ""))
        if not script.video_steps:
            return 200, video_bytes(script.video_bytes, prompt), "video/mp4"
        video = {"id": video_id, "object": "video", "status": "queued", "progress": 0, "created_at": 1}
        video |= {"prompt": prompt, "model": fields.get("model"), "seconds": "2", "size": "64x32"}
        self.videos[video_id], self.looks[video_id] = (video, script), 0
        return _json(200, video)

    def answer(self, method: str, path: str) -> Answer:
        """To a request for one that is being made."""
        video_id, _, content = path.partition("?")[0].removeprefix(f"{PATH}/").partition("/")
        found = self.videos.get(video_id)
        if found is None:
            return _json(404, {"detail": "Video not found"})
        video, script = found
        if method == "DELETE":
            del self.videos[video_id]
            return _json(200, {"id": video_id, "object": "video.deleted", "deleted": True})
        if content:
            if video["status"] != "completed":
                return _json(404, {"detail": "Generation is still in-progress"})
            return 200, video_bytes(script.video_bytes, video["prompt"]), "video/mp4"
        self.looks[video_id] += 1
        steps = script.video_steps
        done = min(steps, self.looks[video_id])
        video["progress"] = 100 * done // steps
        video["status"] = "in_progress" if done < steps else "failed" if script.video_error else "completed"
        if video["status"] == "failed":
            video["error"] = {"code": script.video_error, "message": "the engine could not make it"}
        return _json(200, video)


def _json(status: int, value: dict[str, Any]) -> Answer:
    return status, orjson.dumps(value), "application/json"
