"""Engines that are stopped by a signal: they accept connections, answer nothing, and are started again."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from shared.process.ports import free_port
from tests.integration.asking import CHAT, chat
from tests.support.processes import House, answer_to, fetch, until

pytestmark = pytest.mark.long

MODEL = "wanted"
ANSWER_S = 20
HUNG_S = 2
GENEROUS_S = 60.0

SCRIPT = """
import os, signal, subprocess, sys
pids, port = sys.argv[1:]
if os.path.exists(pids):
    os.kill(int(open(pids).read().split()[-1]), signal.SIGKILL)
command = [sys.executable, "-m", "tests.support.scripted_engine", "--model", "wanted", "--port", port]
none = subprocess.DEVNULL
child = subprocess.Popen(command, stdin=none, stdout=none, stderr=none, start_new_session=True)
with open(pids, "a") as file:
    print(child.pid, file=file)
"""


def pids_in(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


async def text_of(session: aiohttp.ClientSession, started: asyncio.Event, tokens: int) -> str:
    """A streamed answer. ``started``: some of it has come."""
    request = chat(model=MODEL, stream=True, max_tokens=tokens, script={"tokens_per_s": tokens / ANSWER_S})
    said = ""
    async with session.post(CHAT, json=request) as response:
        assert response.status == 200
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            started.set()
            event = json.loads(line[6:])
            assert "error" not in event, event
            for choice in event["choices"]:
                said += choice["delta"].get("content") or ""
    return said


async def test_an_engine_of_the_agents_that_hangs_is_started_again_and_its_answers_go_on_elsewhere(
    house: House,
) -> None:
    pids = house.directory / "pids"
    run = f"echo $$ >> {pids}; exec {sys.executable} -m tests.support.scripted_engine --model {MODEL}"
    settings = house.directory / "agent.toml"
    settings.write_text(
        f"[[engine]]\ncommand = ['sh', '-c', '{run} --port {{port}}']\nmodels = ['{MODEL}']\n"
        f"load = 'at-start'\nhung_s = {HUNG_S}\nstop_s = 1\ncontinues = {{ chat = 'final_message' }}\n"
    )
    gateway = await asyncio.to_thread(house.gateway)
    key = gateway.key("tests")
    agent = house.agent(gateway, None, "--config", str(settings), name="hangs")
    await asyncio.to_thread(house.wait_for_model, gateway, key, MODEL)
    headers = {"authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(gateway.url, headers=headers) as session:
        started = asyncio.Event()
        answer = asyncio.ensure_future(text_of(session, started, 100))
        await started.wait()
        other = await asyncio.to_thread(house.engine, "--model", MODEL, name="other")
        environment = {"TRUNKLINE_AGENT_CONTINUES": "chat=final_message"}
        house.agent(gateway, other.url, name="helps", environment=environment)
        (first,) = pids_in(pids)
        os.kill(first, signal.SIGSTOP)
        assert await answer == answer_to("hi", 100)
        assert other.stats()["requests"].count("POST /v1/chat/completions") == 1
        await asyncio.to_thread(until, "another process runs", lambda: len(pids_in(pids)) == 2, GENEROUS_S)
        assert "the engine hangs: it has answered nothing for" in agent.log.read_text()
        assert "engine ready" in agent.log.read_text()


async def test_an_engine_of_somebody_elses_is_restarted_by_the_command_that_is_given_for_it(
    house: House,
) -> None:
    script, pids, port = house.directory / "restart.py", house.directory / "pids", free_port()
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(pids), str(port)]
    try:
        await asyncio.to_thread(subprocess.run, command, check=True)
        settings = house.directory / "agent.toml"
        settings.write_text(
            f"[[engine]]\nurl = 'http://127.0.0.1:{port}'\nrestart = {command}\nhung_s = {HUNG_S}\n"
        )
        gateway = await asyncio.to_thread(house.gateway)
        key = gateway.key("tests")
        agent = house.agent(gateway, None, "--config", str(settings))
        await asyncio.to_thread(house.wait_for_model, gateway, key, MODEL)
        os.kill(pids_in(pids)[0], signal.SIGSTOP)
        await asyncio.to_thread(until, "it was restarted", lambda: len(pids_in(pids)) == 2, GENEROUS_S)
        log = agent.log
        await asyncio.to_thread(
            until, "it serves again", lambda: "engine serves again" in log.read_text(), GENEROUS_S
        )
        request = chat(model=MODEL, max_tokens=3)
        answer = await asyncio.to_thread(fetch, f"{gateway.url}{CHAT}", body=request, key=key, timeout_s=30.0)
        assert answer["choices"][0]["message"]["content"] == answer_to("hi", 3)
    finally:
        os.kill(pids_in(pids)[-1], signal.SIGKILL)
