"""``python -m spark.retention``; for ``spark-submit``, this file."""

from spark.common.entry import main
from spark.retention.job import retention

if __name__ == "__main__":
    main("retention", retention)
