"""Who waits, and in which order those who wait are served (SCHEDULING §3). Pure."""
