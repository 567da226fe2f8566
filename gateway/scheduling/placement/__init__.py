"""Which models are loaded where (SCHEDULING §5). Pure."""
