"""Tests of the built-in engine. They compute as its process does, without the imports that it leaves out:
these take a second and a half of CPU time."""

from agent.engines.torch.lean_imports import import_transformers

import_transformers()
