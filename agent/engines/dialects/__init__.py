"""Dialects of text that an engine does not speak, translated to chat completions and back where its agent
stands.

Pure but for :mod:`agent.engines.dialects.call`. A dialect says what request of ``/v1/chat/completions`` asks
for the same, and what the answer, its events or its error are in the client's shape. What chat completions
have no words for raises :class:`agent.engines.dialects.dialect.Untranslatable`.
"""
