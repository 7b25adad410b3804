"""Searches settings under constraints."""
