"""Nouns, units, errors and protocols: what every room may import, and the only thing it may."""
