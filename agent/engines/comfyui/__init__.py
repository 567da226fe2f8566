"""ComfyUI: workflows with declared inputs, run as prompts of a server that executes one at a time."""
