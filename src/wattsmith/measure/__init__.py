"""Reads the machine: meters, windows, integration, replay."""
