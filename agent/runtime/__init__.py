"""The agent's process: what its watchdog tells."""
