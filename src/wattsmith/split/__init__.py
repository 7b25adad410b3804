"""Cuts a training step in two: what workers may do with the data, and what must stay with the weights."""
