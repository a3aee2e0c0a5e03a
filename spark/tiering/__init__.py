"""Runs of WAL objects are recorded, and become tiered segments."""
