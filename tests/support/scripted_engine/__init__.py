"""An OpenAI-compatible engine that does as it is told: paced, deterministic, and faulty on request.

In a test: ``async with ScriptedEngine() as engine: ... engine.url ... engine.stats``.
As a process: ``python -m tests.support.scripted_engine --port 0``; it prints its URL on the first line.
"""

from tests.support.scripted_engine.engine import ScriptedEngine, Stats
from tests.support.scripted_engine.script import Fault, Habit, Script, Trouble, embedding_of, tokens_of

__all__ = ["Fault", "Habit", "Script", "ScriptedEngine", "Stats", "Trouble", "embedding_of", "tokens_of"]
