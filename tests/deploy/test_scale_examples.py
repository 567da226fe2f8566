"""The hooks of ``deploy/examples`` for Slurm and Salad, at stand-ins for both."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import orjson
import pytest

from deploy.examples.scale_salad import main
from gateway.scaling.hooks import event_of
from gateway.scaling.observation import SeenReplica
from gateway.scaling.verdict import ModelVerdict, class_verdict
from tests.gateway.scheduling.scaling.facts import L4
from tests.support.threaded_server import served_in_thread

_SLURM = Path(__file__).parents[2] / "deploy" / "examples" / "scale_slurm"
_QUEUE = """#!/usr/bin/env bash
case "$*" in
    *--name=trunkline-Qwen_Qwen3-8B-l4\\ *) ;;
    *) exit 0 ;; # of another model
esac
case "$*" in
    *--states=PENDING\\ *) cat "$RECORD/pending" ;;
    *) cat "$RECORD/pending" "$RECORD/running" ;;
esac
"""


def _change(wanted: int, *agents: str) -> str:
    """As the gateway tells it; the first agent has the least remaining work."""
    seen = [SeenReplica(each, "l4", 8, True, remaining_s=float(at)) for at, each in enumerate(agents)]
    verdict = class_verdict(L4, wanted, wanted, 0.0, 0.0, seen)
    model = ModelVerdict("Qwen/Qwen3-8B", "why", True, 0, 0, {"l4": verdict})
    change = event_of(model, "l4", len(agents), wanted)
    change["ends"] = list(agents[: max(0, len(agents) - wanted)])
    return orjson.dumps(change).decode()


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    """Its commands, which write down how they were called."""
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed, which the example needs")
    for name in ("sbatch", "scancel"):
        (tmp_path / name).write_text(f'#!/usr/bin/env bash\necho {name} "$@" >> "$RECORD/calls"\n')
    (tmp_path / "squeue").write_text(_QUEUE)
    for name in ("sbatch", "scancel", "squeue"):
        (tmp_path / name).chmod(0o755)
    for name in ("pending", "running", "calls"):
        (tmp_path / name).write_text("")
    return tmp_path


def _told(slurm: Path, change: str) -> list[str]:
    environment = {"PATH": f"{slurm}:{os.environ['PATH']}", "RECORD": str(slurm), "JOB_SCRIPT": "job.sbatch"}
    command = ["bash", str(_SLURM), "gpu"]
    done = subprocess.run(command, input=change, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return (slurm / "calls").read_text().splitlines()


def test_slurm_gets_a_job_for_each_replica_that_is_missing(slurm: Path) -> None:
    (slurm / "running").write_text("7\n")
    job = "sbatch --partition=gpu --job-name=trunkline-Qwen_Qwen3-8B-l4 job.sbatch"
    assert _told(slurm, _change(3, "slurm-7")) == [job, job]


def test_slurms_jobs_that_wait_go_first_and_then_those_with_the_least_work(slurm: Path) -> None:
    (slurm / "running").write_text("7\n8\n9\n")
    (slurm / "pending").write_text("10\n")
    assert _told(slurm, _change(1, "slurm-8", "rented", "slurm-9", "slurm-7")) == [
        "scancel 10",
        "scancel --signal=TERM --batch 8",
        "scancel --signal=TERM --batch 9",
    ]


def test_slurm_is_left_alone_where_all_is_as_wanted(slurm: Path) -> None:
    (slurm / "running").write_text("7\n")
    assert _told(slurm, _change(1, "slurm-7")) == []


@dataclass
class _Salad:
    """A container group."""

    url: str
    asked: list[tuple[str, str, object]] = field(default_factory=list)
    status: int = 200


@pytest.fixture
def salad() -> Iterator[_Salad]:
    found = _Salad("")

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({"instances": [{"machine_id": each, "id": f"i-{each}"} for each in ("m1", "m2")]})

        def do_PATCH(self) -> None:
            self._answer(None)

        def _answer(self, found_there: object) -> None:
            length = int(self.headers.get("content-length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            allowed = self.headers["salad-api-key"] == "key"
            found.asked.append((self.command, self.path, body))
            said = b"" if found_there is None else json.dumps(found_there).encode()
            self.send_response(found.status if allowed else 403)
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None:
            pass

    with served_in_thread(HTTPServer(("127.0.0.1", 0), Api)) as found.url:
        yield found


_ARGUMENTS = ("org/my project", "l4=group")
_KEY = {"SALAD_API_KEY": "key"}


def test_salads_instances_get_their_costs_before_the_group_gets_its_replicas(salad: _Salad) -> None:
    change = _change(1, "salad-m2", "gpu-1", "salad-m1")
    assert main(_ARGUMENTS, change, _KEY, salad.url) == 0
    group = "/organizations/org/projects/my%20project/containers/group"
    assert salad.asked == [
        ("GET", f"{group}/instances", None),
        ("PATCH", f"{group}/instances/i-m2", {"deletion_cost": 0}),
        ("PATCH", f"{group}/instances/i-m1", {"deletion_cost": 2}),
        ("PATCH", group, {"replicas": 1}),
    ]


def test_a_class_without_a_group_of_salads_is_anothers(salad: _Salad) -> None:
    assert main(("org/p", "h100=group"), _change(1, "salad-m1"), _KEY, salad.url) == 0
    assert salad.asked == []


def test_what_salad_refuses_is_to_be_tried_again(salad: _Salad, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_ARGUMENTS, _change(1, "salad-m1"), {"SALAD_API_KEY": "other"}, salad.url) == 1
    assert "403" in capsys.readouterr().err
    assert main(_ARGUMENTS, "{}", _KEY, salad.url) == 1


@pytest.mark.parametrize(
    ("arguments", "environ"),
    [((), _KEY), (("org",), _KEY), (("org/p",), _KEY), (("org/p", "l4"), _KEY), (_ARGUMENTS, {})],
)
def test_wrong_usage_is_said(arguments: tuple[str, ...], environ: dict[str, str], salad: _Salad) -> None:
    assert main(arguments, _change(1), environ, salad.url) == 2
    assert salad.asked == []
