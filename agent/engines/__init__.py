"""The agent's adapters for engines: one file or package per kind of engine."""
