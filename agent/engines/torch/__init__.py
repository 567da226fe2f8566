"""The built-in engine: real models through torch and transformers, in a process of its own.

It has two sides, which speak only HTTP on a Unix socket with each other:

- the agent's side: `backend` (:class:`~agent.engines.torch.backend.TorchBackend`); it does not import torch;
- the engine process (``python -m agent.engines.torch``), from the top down: `__main__` (life of the
  process) → `http`, `metrics` (the OpenAI surface) → `parsing`, `chat_requests`, `shapes` (bodies in, bodies
  out) → `engine` (one model) → `prompts`, `guidance` (what a request asks of its texts) → `answers`,
  `tool_calls` (the texts of one request) → `generation`, `embedding` (what waits and what runs) → `batching`,
  `manager`, `sampling` (transformers' continuous batching) → `models` (loading), `text` (messages to tokens,
  tokens to text).

`startup` (command line, lines on standard output) is what both sides agree on; `errors` are for all.

A separate process, so that the agent's heartbeats and state stay truthful while a model computes, and so that
a model that crashes its process (out of memory, an error in a kernel) leaves the agent running.
"""
