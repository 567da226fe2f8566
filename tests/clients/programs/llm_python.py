"""The command ``llm``, with its command for servers like OpenAI's."""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from checks import FACTS, QUESTION, SYSTEM, WEATHER, WORDS, Unasked, is_weather, run, same

COMMAND = str(Path(sys.executable).with_name("llm"))
FUNCTION = (
    'def weather(city: str, celsius: int) -> str:\n    "The weather of a city."\n    return "7 degrees"\n'
)


def ask(text: str, *options: str) -> str:
    where = ("openai", "endpoint", FACTS["base_url"], "-m", FACTS["model"], "--key", FACTS["key"])
    return llm(*where, "-o", "max_tokens", "300", *options, text)


def llm(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [COMMAND, *arguments],
        stdin=subprocess.DEVNULL,  # it would read a part of the prompt there
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environment,
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


def messages() -> None:
    if not FACTS["alias"]:
        raise Unasked("its plugin for Anthropic takes no names but those of Anthropic's models")
    with TemporaryDirectory() as directory:
        where = {"ANTHROPIC_BASE_URL": FACTS["url"], "ANTHROPIC_API_KEY": FACTS["key"]}
        for options in ((), ("--no-stream",)):
            asked = (
                "-m",
                f"anthropic/{FACTS['alias']}",
                "-o",
                "max_tokens",
                "300",
                "--no-log",
                *options,
                WORDS,
            )
            same(llm(*asked, LLM_USER_PATH=directory, **where), WORDS)


run(chat=chat, stream=stream, tools=tools, structured=structured, responses=responses, messages=messages)
