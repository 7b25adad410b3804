"""Checks of results: a profile for each round, the official checks by name, and a strict layer above them."""
