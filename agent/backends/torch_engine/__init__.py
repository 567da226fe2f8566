"""The built-in engine: real models through torch and transformers, in a process of its own.

Two sides live here, and they meet only over HTTP on a Unix socket:

- the agent's side: `backend` (:class:`~agent.backends.torch_engine.backend.TorchBackend`) over `process`;
  nothing of it imports torch;
- the engine process (``python -m agent.backends.torch_engine``), read from the top down: `main` (life of the
  process) → `http` and `streams` (the OpenAI surface) → `parsing`, `shapes` (bodies in, bodies out) →
  `engine` (one model: prompts to tokens and back) → `generation`, `embedding` (what waits and runs) →
  `manager`, `sampling` (transformers' continuous batching) → `models` (loading) → `text`, `faults`,
  `options`.

A separate process, so that the agent's heartbeats and state stay truthful while a model computes, and so that
whatever a model does to its process (out of memory, a crash in a kernel) does nothing to the agent.
"""
