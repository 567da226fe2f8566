"""``python -m agent`` does what ``trunkline agent`` does."""

from shared.process.startup import without_collection

with without_collection():
    from agent.cli import main

if __name__ == "__main__":
    main()
