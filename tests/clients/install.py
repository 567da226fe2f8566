"""Installs clients, each in an environment of its own under ``tests/.cache``, which is kept."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(__file__).parents[1] / ".cache" / "clients"
PROGRAMS = Path(__file__).parent / "programs"


class NotInstalled(Exception):
    """The client cannot be installed here; the message says why."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client of others, and the program that uses it."""

    title: str
    program: str
    packages: tuple[str, ...]
    """What is installed for it, with versions: from PyPI or, for a program in JavaScript, from npm."""

    @property
    def versions(self) -> str:
        """What it is, for people: its own package comes first."""
        return self.packages[0].replace("==", " ").replace("@", " ") if self.is_python else self._of_npm

    @property
    def is_python(self) -> bool:
        return self.program.endswith(".py")

    @property
    def _of_npm(self) -> str:
        name, _, version = self.packages[0].rpartition("@")
        return f"{name} {version}"


CLIENTS = (
    Client("OpenAI Python", "openai_python.py", ("openai==3.54.0",)),
    Client("OpenAI Node", "openai_node.mjs", ("openai@6.49.0", "zod@4.6.7")),
    Client("Anthropic Python", "anthropic_python.py", ("anthropic==2.12.0",)),
    Client("Anthropic Node", "anthropic_node.mjs", ("@anthropic-ai/sdk@1.12.0", "zod@4.6.7")),
    Client(
        "LangChain",
        "langchain_python.py",
        ("langchain==1.4.7", "langchain-openai==1.7.3", "langchain-anthropic==1.7.7"),
    ),
    Client(
        "LlamaIndex",
        "llama_index_python.py",
        (
            "llama-index-core==0.14.25",
            "llama-index-llms-openai-like==0.8.1",
            "llama-index-llms-anthropic==0.12.3",
            "llama-index-embeddings-openai-like==0.4.0",
            "anthropic<1",  # with 1 and 2 the package above fails before it sends anything
        ),
    ),
    Client(
        "Vercel AI SDK",
        "ai_node.mjs",
        (
            *("ai@6.0.326", "@ai-sdk/openai@3.0.141", "@ai-sdk/openai-compatible@2.0.92"),
            "@ai-sdk/anthropic@3.0.140",
        ),
    ),
    Client("instructor", "instructor_python.py", ("instructor==1.17.0", "anthropic==2.12.0")),
    Client("LiteLLM", "litellm_python.py", ("litellm==1.106.2", "mcp")),
    Client("llm", "llm_python.py", ("llm==0.36", "llm-anthropic==0.30")),
)


def command_of(client: Client) -> list[str]:
    """The command that runs its program, but for the facts. Installs what is not there yet. Raises
    :class:`NotInstalled`."""
    directory = CACHE / Path(client.program).stem
    stamp = directory / "installed.txt"
    wanted = "\n".join(client.packages)
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        if client.is_python:
            _run(sys.executable, "-m", "venv", "--without-pip", str(directory))
            uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
            if uv is None:
                raise NotInstalled("uv is needed to install clients: pip install uv")
            _run(uv, "pip", "install", "-q", "--python", str(directory / "bin" / "python"), *client.packages)
        else:
            if shutil.which("npm") is None:
                raise NotInstalled("node and npm are not installed")
            (directory / "package.json").write_text('{"private": true, "type": "module"}')
            _run(
                "npm",
                "install",
                "--no-audit",
                "--no-fund",
                "--loglevel=error",
                *client.packages,
                at=directory,
            )
        stamp.write_text(wanted)
    if client.is_python:
        return [str(directory / "bin" / "python"), str(PROGRAMS / client.program)]
    for name in ("checks.mjs", client.program):  # modules are looked for beside the program
        shutil.copy(PROGRAMS / name, directory)
    return ["node", str(directory / client.program)]


def _run(*command: str, at: Path | None = None) -> None:
    try:
        subprocess.run(command, cwd=at, check=True, capture_output=True, text=True, timeout=600)
    except subprocess.CalledProcessError as error:
        raise NotInstalled(f"{' '.join(command[:4])} …: {error.stderr.strip()[-300:]}") from error
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(f"{' '.join(command[:4])} … took longer than 10 minutes") from error
