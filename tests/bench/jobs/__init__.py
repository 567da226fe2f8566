"""What jobs, batches and files cost: ``tests/run bench jobs``."""
