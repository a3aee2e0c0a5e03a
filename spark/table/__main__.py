"""``python -m spark.table``."""

from spark.common.entry import main
from spark.table.job import count

if __name__ == "__main__":
    main("table", count)
