"""A button at a job's task: its application in Spark's history server."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink
from airflow.sdk.execution_time.xcom import XCom

from tideline.airflow.results import APPLICATION
from tideline.settings import AirflowSettings, load

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class SparkUiLink(BaseOperatorLink):
    """Of the application, where the job's result names it; of a job that failed, or had nothing to
    do and did not start Spark, the list of all. Empty unless ``TIDELINE_AIRFLOW_SPARK_UI`` is set.
    """

    name = "Spark UI"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        if (base := load(AirflowSettings).airflow_spark_ui) is None:
            return ""
        base = base.rstrip("/")
        result = XCom.get_value(ti_key=ti_key, key="return_value")
        application = result.get(APPLICATION) if isinstance(result, dict) else None
        return f"{base}/history/{quote(application, safe='')}/jobs/" if application else base
