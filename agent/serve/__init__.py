"""Serves a model that is written as a Python class: ``trunkline agent --python module:Class``.

What such a class uses is here: :class:`Model`, and the types of its hooks. The rest has two sides, which
speak only HTTP on a Unix socket with each other:

- the agent's side: `backend` (:class:`~agent.serve.backend.PythonBackend`);
- the server process (``python -m agent.serve``), which runs none of the model's code: `__main__` (life of the
  process) → `http`, `metrics` → `call` (a request's way) → `server`, `computation` → `batching` (what is
  computed together), `codec_pool` and `device` (the model's processes) → `child` (one of them);
- the model's processes (``python -m agent.serve.worker``): `worker`, `codec` (decode and encode) and
  `prediction` (predict), one for each device; `locate` finds the class.

`options` (command line, lines on standard output), `messages` and `parcels` (what goes between processes) are
what the sides agree on.
"""

from agent.serve.model import END as END
from agent.serve.model import Batch as Batch
from agent.serve.model import Model as Model
from agent.serve.model import ModelRequest as ModelRequest
from agent.serve.model import ModelResponse as ModelResponse
from shared.process.request_errors import BadRequest as BadRequest
