"""Runs one of Tideline's Spark jobs and fails with the job's own words."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tideline.airflow.results import JobResult, read_result
from tideline.installation import PACKAGE, refuse_strangers
from tideline.settings import TOML, AirflowSettings, load
from tideline.settings_files import CONTEXT

if TYPE_CHECKING:
    from airflow.sdk import Context

MAX_ERROR_CHARACTERS = 2_000
MODULES = frozenset({"split", "merge"})
"""Jobs that are a module of the package ``spark``; each other one is a package of it."""


class TidelineJobOperator(SparkSubmitOperator):
    """``spark-submit`` of ``python -m spark.<job>`` with the connection ``spark_default``.

    Settings reach the job by its environment: that of Airflow's worker, and ``TIDELINE_CONFIG``
    when ``TIDELINE_AIRFLOW_JOBS_CONFIG`` names the settings file of the jobs' role. The job's
    result is the task's return value. A failed task says the job's own line, which names the
    store that is away; a job that was refused, or has wrong settings, is not tried again.
    """

    def __init__(
        self, *, job: str, arguments: Sequence[str] = (), applications: str = "", **kwargs: Any
    ) -> None:
        """``applications``: the directory of the entry points; by default the installed package
        ``spark``."""
        self.job = job
        self.arguments = tuple(arguments)
        directory = Path(applications) if applications else installed_jobs()
        kwargs.setdefault("name", f"tideline-{job}")
        super().__init__(application=str(entry_point(directory, job)), **kwargs)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        with tempfile.TemporaryDirectory(prefix="tideline-job-") as directory:
            file = Path(directory) / "result.json"
            self.application_args = [*self.arguments, "--result", str(file)]
            self.env_vars = (
                environment(load(AirflowSettings))
                | {"TIDELINE_TIERING_CLAIM_HOLDER": f"{self.dag_id}.{self.task_id}"}
                | (self.env_vars or {})
            )
            try:
                super().execute(context)
            except AirflowException as error:
                raise explained(self.job, read_result(file), error) from error
            result = read_result(file)
        return {"job": self.job} if result is None else result.kept()


def environment(settings: AirflowSettings) -> dict[str, str]:
    """What the driver and its Python workers get beside the worker's own environment."""
    variables = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if settings.airflow_jobs_config is not None:
        variables["TIDELINE_CONFIG"] = str(settings.airflow_jobs_config)
        if settings.airflow_jobs_config.suffix != TOML:
            variables[CONTEXT] = ""  # Airflow's own, of its own file
    return variables


def explained(job: str, result: JobResult | None, error: AirflowException) -> AirflowException:
    """The failure in the job's words; without a result, what spark-submit said."""
    if result is None or result.error is None:
        return AirflowException(f"{job} ended without a result: {error}"[:MAX_ERROR_CHARACTERS])
    message = f"{job}: {result.error}"[:MAX_ERROR_CHARACTERS]
    return AirflowException(message) if result.may_be_tried_again else AirflowFailException(message)


def entry_point(directory: Path, job: str) -> Path:
    """The file that ``python -m`` runs: that of a module, or of a package. Not looked for: the
    directory may be one that only the driver's machine has."""
    return directory / (f"{job}.py" if job in MODULES else f"{job}/__main__.py")


def installed_jobs() -> Path:
    """The directory of the package ``spark``, found without running it."""
    refuse_strangers()
    return PACKAGE.parent / "spark"
