"""HTTP: connections, the requests on them, the OpenAI surface and the admin API."""
