"""Queues that people already have feed jobs: messages come in, replies go out."""
