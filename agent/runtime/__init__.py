"""The agent's process: its log and its watchdog."""
