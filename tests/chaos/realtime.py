"""A realtime session whose tunnel is cut again and again: no message may be lost, doubled or reordered.

The client is OpenAI's SDK, which may not connect anew; the engine speaks vLLM's dialect. Each piece of audio
has a number, which the engine says back, so that every message of either direction is accounted for.
"""

import asyncio
import base64
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from websockets.exceptions import ConnectionClosed

from tests.support.processes import House
from tests.support.proxy import FaultyProxy
from tests.support.realtime_engine import MODEL, realtime_engine

CUT_EVERY_S = 2.0
PIECES = 20
"""Of an utterance."""
PAUSE_S = 0.02
SAMPLES = 480
"""20 ms of audio."""
NUMBERS = 30_000
END_S = 60.0
"""For what is under way when the last utterance was committed."""


@dataclass(slots=True)
class RealtimeFindings:
    seconds: float = 0.0
    cuts: int = 0
    pieces: int = 0
    """Of audio, sent."""
    utterances: int = 0
    """Committed."""
    deltas: list[int] = field(default_factory=list)
    transcripts: list[str] = field(default_factory=list)
    committed: int = 0
    """As the client was told."""
    odd: list[str] = field(default_factory=list)
    """Events that should not have come."""
    heard: list[int] = field(default_factory=list)
    """By the engine."""
    dropped: int = 0

    def wrong(self) -> list[str]:
        """What was lost, doubled, reordered or not meant to be."""
        numbers = [each % NUMBERS for each in range(self.pieces)]
        texts = [
            "".join(f"{each} " for each in numbers[start : start + PIECES])
            for start in range(0, self.pieces, PIECES)
        ]
        found = [f"unexpected: {each}" for each in self.odd]
        if self.heard != numbers:
            found.append(
                f"the engine heard {len(self.heard)} pieces of {self.pieces}{_first(self.heard, numbers)}"
            )
        if self.deltas != numbers:
            found.append(f"{len(self.deltas)} deltas of {self.pieces}{_first(self.deltas, numbers)}")
        if self.transcripts != texts:
            found.append(f"{len(self.transcripts)} transcripts of {self.utterances}, or wrong ones")
        if self.committed != self.utterances:
            found.append(f"{self.committed} commits told of {self.utterances}")
        if self.dropped:
            found.append(f"the engine dropped {self.dropped} pieces")
        return found

    def __str__(self) -> str:
        told = f"{len(self.deltas)} deltas and {len(self.transcripts)} transcripts"
        return (
            f"realtime: {self.seconds:.0f} s, {self.cuts} cuts of the tunnel, {self.pieces} pieces of audio "
            f"in {self.utterances} utterances, {told}"
        )


def _first(found: list[int], wanted: list[int]) -> str:
    pairs = enumerate(zip(found, wanted, strict=False))
    place = next((index for index, (one, other) in pairs if one != other), min(len(found), len(wanted)))
    return f", the first wrong one is number {place}"


async def run_realtime(seconds: float, directory: Path, say: Callable[[str], None]) -> RealtimeFindings:
    """One session of so long, through processes of gateway and agent."""
    findings = RealtimeFindings()
    with House(directory) as house:
        gateway = await asyncio.to_thread(house.gateway)
        key = gateway.key("realtime")
        async with realtime_engine() as engine, FaultyProxy("127.0.0.1", gateway.port) as proxy:
            agent = house.agent(gateway, engine.url, dial=proxy.url)
            await asyncio.to_thread(house.wait_for_model, gateway, key, MODEL)
            async with (
                AsyncOpenAI(base_url=gateway.base_url, api_key=key, max_retries=0) as client,
                client.realtime.connect(model=MODEL, max_retries=0) as connection,
            ):
                await _converse(connection, proxy, seconds, findings)
            await asyncio.to_thread(house.children.stop, agent)
            findings.heard, findings.dropped = engine.heard, engine.dropped
    say(str(findings))
    return findings


async def _converse(connection: Any, proxy: FaultyProxy, seconds: float, findings: RealtimeFindings) -> None:
    began_s = time.monotonic()
    ends_s = began_s + seconds
    listening = asyncio.create_task(_listen(connection, findings))
    cutting = asyncio.create_task(_cut(proxy, findings))
    try:
        while time.monotonic() < ends_s:
            for _ in range(PIECES):
                await connection.input_audio_buffer.append(audio=_audio(findings.pieces))
                findings.pieces += 1
                await asyncio.sleep(PAUSE_S)
            await connection.input_audio_buffer.commit()
            findings.utterances += 1
        async with asyncio.timeout(END_S):
            while len(findings.transcripts) < findings.utterances:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    except TimeoutError:
        findings.odd.append("the last transcripts did not come")
    except ConnectionClosed as closed:
        findings.odd.append(f"the session ended: {closed}")
    finally:
        findings.seconds = time.monotonic() - began_s
        for task in (listening, cutting):
            task.cancel()
        ended = await asyncio.gather(listening, cutting, return_exceptions=True)
        findings.odd += [repr(each) for each in ended if isinstance(each, Exception)]


def _audio(number: int) -> str:
    return base64.b64encode(array("h", [number % NUMBERS] * SAMPLES).tobytes()).decode()


async def _cut(proxy: FaultyProxy, findings: RealtimeFindings) -> None:
    while True:
        await asyncio.sleep(CUT_EVERY_S)
        await proxy.cut()
        findings.cuts += 1


async def _listen(connection: Any, findings: RealtimeFindings) -> None:
    async for received in connection:
        event: Any = received
        match event.type:
            case "conversation.item.input_audio_transcription.delta":
                findings.deltas.append(int(event.delta))
            case "conversation.item.input_audio_transcription.completed":
                findings.transcripts.append(event.transcript)
            case "input_audio_buffer.committed":
                findings.committed += 1
            case "session.created" | "conversation.item.added" | "conversation.item.done":
                pass
            case _:
                findings.odd.append(str(event)[:200])
