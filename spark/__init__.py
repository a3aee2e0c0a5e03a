"""PySpark jobs: coverage, hybrid retention, split and merge, object collection."""
