"""Tideline moves Kafka topics from tiered to diskless storage, in place."""

__version__ = "0.1.0"
