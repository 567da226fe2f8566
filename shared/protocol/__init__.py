"""The tunnel protocol without input and output (PROTOCOL.md): frames, credit, streams and sessions."""
