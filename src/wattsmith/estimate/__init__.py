"""Predicts time, memory, power and energy."""
