"""Recognises workloads."""
