"""``python -m spark.verify``."""

from spark.common.entry import main
from spark.verify.job import verify

if __name__ == "__main__":
    main("verify", verify)
