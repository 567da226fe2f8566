"""The dashboard at ``/ui/``: its files, and how they are served."""
