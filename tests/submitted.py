"""A job as an Airflow task runs it: ``python -m tests.submitted JOB [ARGUMENT …]``.

The operator of the DAGs, with the connection and settings of the environment, in a process of its
own without Airflow's servers. The last line on stdout is the task's value, or its failure.
"""

from __future__ import annotations

import json
import sys

from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException

from tideline.airflow.jobs import TidelineJobOperator


def main(job: str, *arguments: str) -> int:
    with DAG("tests"):
        operator = TidelineJobOperator(task_id=job, job=job, arguments=arguments)
    try:
        found = operator.execute({})
    except AirflowException as error:
        print(json.dumps({"failed": str(error), "kind": type(error).__name__}))
        return 1
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
