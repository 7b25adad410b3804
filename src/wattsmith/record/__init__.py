"""Makes and runs synthetic work."""
