"""Remembers runs."""
