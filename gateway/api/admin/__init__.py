"""The admin API: what the commands do, over HTTP."""
