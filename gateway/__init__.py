"""The process clients talk to: HTTP in front, tunnels behind, a queue and a scheduler between."""
