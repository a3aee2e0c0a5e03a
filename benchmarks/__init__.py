"""Measurements as ratios against a named alternative in the same run. `make bench`."""
