"""Decides who runs where, when, on how much power."""
