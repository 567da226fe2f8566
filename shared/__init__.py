"""What gateway and agent share: the tunnel protocol (`protocol/PROTOCOL.md`), identities, processes."""

__version__ = "0.1.0"
