"""SDKs and frameworks of others, unmodified, against a gateway: what each of them can do with an engine that
has chat completions only, and with the built-in one. ``python -m tests.clients --help``."""
