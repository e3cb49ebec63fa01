"""Measurements: what is fast, and what is shown."""
