"""The HTTP surface: ASGI in, requests for the pipeline out, every error in its client's shape."""
