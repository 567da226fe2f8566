"""Container files, read; and their steps carried out without an engine for containers.

A stage is a directory laid over this machine's own file system, in a mount namespace of its own, in place of
the image that the file begins from. ``RUN`` is carried out there by ``chroot``. So are the entry point and
the health check, as the file's user and with the root read-only. Needs root, overlayfs and Debian's Python.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_HEREDOC = re.compile(r"<<-?\s*\w+")
_FROM = re.compile(r"(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE)
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Step:
    """One instruction."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """The members of its JSON list, or its words."""
        if self.text.startswith("["):
            words: list[str] = json.loads(self.text)
            return words
        return shlex.split(self.text)


@dataclass
class Stage:
    """What comes after one ``FROM``."""

    base: str
    name: str
    steps: list[Step] = field(default_factory=list)

    def last(self, name: str) -> Step | None:
        """The instruction of that name that counts."""
        return next((step for step in reversed(self.steps) if step.name == name), None)

    def environment(self) -> dict[str, str]:
        pairs = [word.partition("=") for step in self.steps if step.name == "ENV" for word in step.words]
        return {name: value for name, _, value in pairs}


def read(path: Path) -> tuple[dict[str, str], list[Stage]]:
    """The arguments before the first stage with their defaults, and the stages."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    assert _HEREDOC.search(text) is None, "here-documents are not read"
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for line in filter(None, (each.strip() for each in text.splitlines())):
        name, _, rest = line.partition(" ")
        if name.upper() == "FROM":
            found = _FROM.fullmatch(rest.strip())
            assert found is not None, line
            stages.append(Stage(found[1], found[2] or str(len(stages))))
        elif stages:
            stages[-1].steps.append(Step(name.upper(), rest.strip()))
        else:
            assert name.upper() == "ARG", line
            key, _, value = rest.partition("=")
            arguments[key] = value
    return arguments, stages


def filled(text: str, values: Mapping[str, str]) -> str:
    """With its ``${NAME}`` and ``$NAME``."""
    return re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda found: values[found[1] or found[2]], text)


class Build:
    """Carries out a container file in ``folder``, from ``context``, up to its last stage."""

    def __init__(self, file: Path, context: Path, folder: Path, **arguments: str) -> None:
        defaults, stages = read(file)
        self._arguments = {**defaults, **arguments}
        self._context, self._folder, self._given = context, folder, arguments
        self._layers: dict[str, Path] = {}
        self.stages = {stage.name: stage for stage in stages}
        self.last = stages[-1]
        self.log: list[str] = []

    def run(self) -> "Build":
        self._make(self.last)
        return self

    def _make(self, stage: Stage) -> Path:
        """The directory of the stage; made with those that it needs."""
        if stage.name in self._layers:
            return self._layers[stage.name]
        base = filled(stage.base, self._arguments)
        below = self._make(self.stages[base]) if base in self.stages else self._base()
        layer = self._folder / f"stage-{stage.name}"
        subprocess.run(["cp", "--archive", str(below), str(layer)], check=True)  # with what was removed there
        self._layers[stage.name] = layer
        values = dict(self.stages[base].environment()) if base in self.stages else {}
        directory = self._directory_of(base)
        for step in stage.steps:
            if step.name == "ARG":
                name, _, default = step.text.partition("=")
                values[name] = self._given.get(name, default or self._arguments.get(name, ""))
            elif step.name == "WORKDIR":
                directory = step.text
                (layer / directory.lstrip("/")).mkdir(parents=True, exist_ok=True)
            elif step.name == "COPY":
                self._copy(step, layer, directory)
            elif step.name == "RUN":
                self.log.append(step.text)
                script = f"cd {directory} && {step.text}"
                done = self.chroot(stage, ["/bin/sh", "-c", script], values)
                said = done.communicate(timeout=900)[0]
                assert done.returncode == 0, f"RUN {step.text}\n{said[-3000:]}"
        return self._layers[stage.name]

    def _directory_of(self, base: str) -> str:
        """Where the steps of a stage begin that follows that one."""
        if base not in self.stages:
            return "/"
        step = self.stages[base].last("WORKDIR")
        return (
            step.text
            if step is not None
            else self._directory_of(filled(self.stages[base].base, self._arguments))
        )

    def _base(self) -> Path:
        """What a Python image has and this machine has elsewhere: ``python`` on the PATH."""
        layer = self._folder / "base"
        if not layer.exists():
            (layer / "usr/local/bin").mkdir(parents=True)
            for name in ("python", "python3"):
                (layer / "usr/local/bin" / name).symlink_to("/usr/bin/python3")
        return layer

    def _copy(self, step: Step, layer: Path, directory: str) -> None:
        words = step.words
        origin = None
        if words[0].startswith("--from="):
            origin = words.pop(0).removeprefix("--from=")
        *sources, target = words
        to = layer / os.path.join(directory, target).lstrip("/")
        for source in sources:
            path = (self._context if origin is None else self._make(self.stages[origin])) / source.lstrip("/")
            if path.is_dir():
                leave = shutil.ignore_patterns("*.so", "__pycache__") if origin is None else None
                shutil.copytree(path, to, symlinks=True, dirs_exist_ok=True, ignore=leave)
            else:
                into = to / path.name if target.endswith("/") else to
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, into)

    def chroot(
        self,
        stage: Stage,
        command: list[str],
        environment: Mapping[str, str],
        *,
        user: str | None = None,
        writable: Mapping[str, Path] | None = None,
    ) -> subprocess.Popen[str]:
        """Starts it inside the stage. With ``writable`` (place inside to directory) all else is read-only."""
        merged, work = self._folder / f"merged-{stage.name}", self._folder / f"work-{stage.name}"
        for each in (merged, work):
            each.mkdir(exist_ok=True)
        lines = ["set -e", "mount --make-rprivate /"]
        options = f"lowerdir=/,upperdir={self._layers[stage.name]},workdir={work}"
        lines.append(f"mount -t overlay overlay -o {options} {merged}")
        for name in ("proc", "dev"):
            lines.append(f"mount --rbind /{name} {merged}/{name}")
        for inside, outside in (writable or {}).items():
            lines.append(f"mount --bind {outside} {merged}{inside}")
        if writable is not None:
            lines.append(f"mount -o remount,ro {merged}")
        switch = f"--userspec={user} " if user else ""
        given = " ".join(shlex.quote(f"{key}={value}") for key, value in environment.items())
        path = environment.get("PATH", _SYSTEM_PATH).replace("$PATH", _SYSTEM_PATH)
        line = " ".join(shlex.quote(word) for word in command)
        lines.append(f"exec chroot {switch}{merged} /usr/bin/env -i {given} PATH={path} {line}")
        passed = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        if writable is None:
            lines[-1] = lines[-1].replace("env -i", "env -i HOME=/root " + _quoted(passed), 1)
        return subprocess.Popen(
            ["unshare", "--mount", "/bin/sh", "-c", "\n".join(lines)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def _quoted(environment: Mapping[str, str]) -> str:
    return " ".join(shlex.quote(f"{name}={value}") for name, value in environment.items())


def unable() -> str | None:
    """Why steps cannot be carried out on this machine, or None."""
    if os.geteuid():
        return "only root can lay file systems over one another"
    if shutil.which("unshare") is None or not Path("/usr/bin/python3").exists():
        return "util-linux and the system's own Python are needed"
    venv = subprocess.run(
        ["/usr/bin/python3", "-c", "import ensurepip, sys; assert sys.version_info >= (3, 11)"]
    )
    if venv.returncode:
        return "the system's own Python is older than 3.11 or lacks its venv module (python3-venv)"
    script = "mkdir -p /tmp/o && mount -t tmpfs t /tmp/o && cd /tmp/o && mkdir u w m && "
    script += "mount -t overlay o -o lowerdir=/,upperdir=u,workdir=w m"
    tried = subprocess.run(["unshare", "--mount", "/bin/sh", "-c", script], capture_output=True, text=True)
    return f"overlayfs cannot be mounted here: {tried.stderr.strip()}" if tried.returncode else None
