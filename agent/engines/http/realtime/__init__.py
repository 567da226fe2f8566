"""Realtime dialects of engines, translated to OpenAI's events for clients of ``/v1/realtime``."""
