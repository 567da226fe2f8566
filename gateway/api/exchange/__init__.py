"""One client's request and reply over HTTP: its body, its headers, its log line and audit record."""
