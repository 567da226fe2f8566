"""The stages of a request, in order."""
