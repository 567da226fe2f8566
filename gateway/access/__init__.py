"""Who may do what: client keys (``KeyRing``) and agents (``AgentDirectory``)."""

from gateway.access.agents import AdmittedAgent, AgentDirectory
from gateway.access.keys import KeyRing

__all__ = ["AdmittedAgent", "AgentDirectory", "KeyRing"]
