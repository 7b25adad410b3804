"""Moves data: cuts data work from training work."""
