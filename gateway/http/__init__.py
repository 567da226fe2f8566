"""The HTTP surface: ASGI in, requests for the pipeline out, and every error in the shape its client expects."""
