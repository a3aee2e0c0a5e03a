"""Retention of prefix and suffix as one log."""
