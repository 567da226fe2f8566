"""Commands that are programs of their own: the simulator, the bench and the quickstart."""
