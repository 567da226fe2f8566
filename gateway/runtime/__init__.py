"""The process: configuration, lifecycle, descriptors, memory, watchdog and the background writer."""
