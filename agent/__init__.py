"""The process on a GPU host: dials out, offers what its engines can serve, runs what it is sent."""
