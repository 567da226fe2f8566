"""Engines that the agent starts as commands."""
