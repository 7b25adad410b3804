"""Moves data: batches for a trainer, from workers that may come and go."""
