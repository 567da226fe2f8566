"""The handlers of the OpenAI surface."""
