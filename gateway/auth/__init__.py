"""Who may do what: client keys (``KeyRing``) and agents (``AgentDirectory``)."""

from gateway.auth.agents import AdmittedAgent, AgentDirectory
from gateway.auth.keys import KeyRing

__all__ = ["AdmittedAgent", "AgentDirectory", "KeyRing"]
