"""``python -m gateway`` is ``trunkline gateway``."""

from shared.process.startup import without_collection

with without_collection():
    from gateway.cli.gateway import app

if __name__ == "__main__":
    app(prog_name="python -m gateway")
