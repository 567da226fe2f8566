"""Which models are loaded where (`docs/scheduling.md`, *Where models live*). Pure."""
