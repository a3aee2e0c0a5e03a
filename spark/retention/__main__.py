"""``python -m spark.retention``."""

from spark.common.entry import main
from spark.retention.job import retention

if __name__ == "__main__":
    main("retention", retention)
