"""What the commands in ``cli`` and ``tools`` share: output on the console, and asking a gateway over HTTP."""
