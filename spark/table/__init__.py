"""A hybrid topic as a table: ``spark.read.format("tideline")``; docs/table.md."""
