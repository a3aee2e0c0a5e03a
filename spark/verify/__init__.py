"""A topic's table from object storage beside what gateways serve: docs/table.md."""
