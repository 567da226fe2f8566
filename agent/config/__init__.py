"""The agent's settings and those of its engines."""
