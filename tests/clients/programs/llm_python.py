"""The command ``llm``, with its command for servers like OpenAI's."""

import json
import subprocess
import sys
from pathlib import Path

from checks import FACTS, QUESTION, SYSTEM, WEATHER, WORDS, Unasked, is_weather, run, same

COMMAND = str(Path(sys.executable).with_name("llm"))
FUNCTION = (
    'def weather(city: str, celsius: int) -> str:\n    "The weather of a city."\n    return "7 degrees"\n'
)


def ask(text: str, *options: str) -> str:
    where = [COMMAND, "openai", "endpoint", FACTS["base_url"], "-m", FACTS["model"], "--key", FACTS["key"]]
    done = subprocess.run(
        [*where, "-o", "max_tokens", "64", *options, text], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout.strip()


def chat() -> None:
    same(ask(WORDS, "--no-stream", "-s", SYSTEM), WORDS)


def stream() -> None:
    same(ask(WORDS), WORDS)


def tools() -> None:
    if not FACTS["echoes"]:
        raise Unasked("llm cannot demand that a tool is called, and this model calls none by itself")
    same(ask(QUESTION, "--functions", FUNCTION), "7 degrees")


def structured() -> None:
    is_weather(ask(QUESTION, "--schema", json.dumps(WEATHER)))


def responses() -> None:
    same(ask(WORDS, "--responses", "--no-stream"), WORDS)
    same(ask(WORDS, "--responses"), WORDS)


run(chat=chat, stream=stream, tools=tools, structured=structured, responses=responses)
