"""The tunnel protocol, used by both ends. Normative text: PROTOCOL.md beside this file."""

__version__ = "0.1.0"
