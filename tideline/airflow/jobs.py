"""Runs one of Tideline's Spark jobs and fails with the job's own words."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tideline.airflow.clusters import Cluster, Submission, Target, submission
from tideline.airflow.results import JobResult, read_result, result_of
from tideline.errors import TidelineError, UsageError
from tideline.object_store.runs import SCHEME, bucket_and_key, url_of
from tideline.settings import TOML, AirflowSettings, ObjectStoreSettings, load
from tideline.settings_files import CONTEXT

if TYPE_CHECKING:
    from airflow.sdk import Context

MAX_ERROR_CHARACTERS = 2_000
RUN_KEY = "tideline_run_id"
"""In the task's state store: the run whose driver a later try may find."""
KUBERNETES = "airflow.providers.cncf.kubernetes"


@dataclass(frozen=True, slots=True)
class Expected:
    """A run that is submitted, and where its result will be: a path, or an ``s3://`` URL."""

    run_id: UUID
    place: str


class TidelineJobOperator(SparkSubmitOperator):
    """``spark-submit`` of a job with the connection ``spark_default``, in whichever deploy mode
    that names.

    The driver has its settings from the file that ``TIDELINE_AIRFLOW_JOBS_CONFIG`` names, else from
    its environment. The job's result is the task's return value: a driver in the cluster leaves it
    in the object store. A failed task says the job's own line, which names the store that is away;
    a job that was refused, has wrong settings, or calls its outcome final is not tried again.
    """

    def __init__(self, *, job: str, arguments: Sequence[str] = (), **kwargs: Any) -> None:
        self.job = job
        self.arguments = tuple(arguments)
        kwargs.setdefault("name", f"tideline-{job}")
        super().__init__(**kwargs)
        self._run_id: UUID | None = None

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        try:
            settings = load(AirflowSettings)
            target = self._target()
            conf = {str(name): str(value) for name, value in (self.conf or {}).items()}
            asked = submission(target, self.job, settings, conf)
            with _expected(self.job, target) as expected:
                self._prepare(asked, settings, expected)
                return self._run(context, expected)
        except UsageError as error:
            raise AirflowFailException(f"{self.job}: {error}") from error

    def submit_job(self, context: Context) -> str | None:
        """As the provider's; the run is noted beside what the cluster calls its driver."""
        found: str | None = super().submit_job(context)
        if (state := context.get("task_state_store")) is not None:
            state.set(RUN_KEY, str(self._run_id))
        return found

    def _target(self) -> Target:
        """By the connection, as the provider reads it."""
        try:
            connection = self._get_hook()._connection
        except (NameError, RuntimeError) as error:
            if not _is_installed(KUBERNETES):
                raise UsageError(
                    "a Spark master on Kubernetes needs the provider cncf.kubernetes: install "
                    "tideline[airflow,kubernetes]"
                ) from error
            raise
        return Target.of(str(connection["master"]), connection["deploy_mode"])

    def _prepare(self, asked: Submission, settings: AirflowSettings, expected: Expected) -> None:
        """What the provider makes its hook and its command from."""
        self._run_id = expected.run_id
        self.application, self._java_class = asked.application, asked.java_class
        self.conf = dict(asked.conf)
        self._archives = self._archives or asked.archives
        self.files = self.files or asked.files
        self._yarn_track_via_rm_api = asked.tracked and asked.cluster is Cluster.YARN
        self._track_driver_via_k8s_api = asked.tracked and asked.cluster is Cluster.KUBERNETES
        # What the cluster does not tell the state of cannot be found again.
        self.durable = self.durable and asked.tracked
        self.application_args = [
            *asked.words,
            *(f"{name}={value}" for name, value in variables(settings).items()),
            f"TIDELINE_TIERING_CLAIM_HOLDER={self.dag_id}.{self.task_id}",
            self.job,
            *self.arguments,
            "--run-id",
            str(expected.run_id),
            "--result",
            expected.place,
        ]

    def _run(self, context: Context, expected: Expected) -> dict[str, Any]:
        self.log.info("Run %s, its result: %s", expected.run_id, expected.place)
        try:
            super().execute(context)
        except (AirflowException, RuntimeError, OSError) as error:
            raise explained(self.job, self._result(context, expected), error) from error
        except ValueError as error:  # the provider's word for a connection that lacks something
            raise UsageError(str(error)) from error
        result = self._result(context, expected)
        return {"job": self.job} if result is None else result.kept()

    def _result(self, context: Context, expected: Expected) -> JobResult | None:
        """Of this run, or of the one that an earlier try has submitted and this one has found."""
        if not expected.place.startswith(SCHEME):
            return read_result(Path(expected.place))
        from tideline.object_store.client import ObjectStoreClient

        state = context.get("task_state_store") if self.durable else None
        noted = state.get(RUN_KEY) if state is not None else None
        run_id = UUID(str(noted)) if noted else expected.run_id
        store_settings = load(ObjectStoreSettings)
        url = url_of(store_settings, self.job, run_id)
        try:
            return result_of(ObjectStoreClient(store_settings).get(*bucket_and_key(url)))
        except TidelineError as error:
            self.log.warning("The result cannot be read from %s: %s", url, error)
            return None


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it
        return False


@contextmanager
def _expected(job: str, target: Target) -> Iterator[Expected]:
    """A new run. A driver on this machine leaves its result in a file, which goes at the end."""
    run_id = uuid4()
    if target.remote:
        yield Expected(run_id, url_of(load(ObjectStoreSettings), job, run_id))
    else:
        with tempfile.TemporaryDirectory(prefix="tideline-job-") as directory:
            yield Expected(run_id, str(Path(directory) / "result.json"))


def variables(settings: AirflowSettings) -> dict[str, str]:
    """Where the driver finds its settings, unless its environment says so."""
    if (file := settings.airflow_jobs_config) is None:
        return {}
    found = {"TIDELINE_CONFIG": str(file)}
    if file.suffix != TOML:
        found[CONTEXT] = ""  # Airflow's own, of its own file
    return found


def explained(job: str, result: JobResult | None, error: Exception) -> AirflowException:
    """The failure in the job's words; without a result, what spark-submit said."""
    if result is None or result.error is None:
        return AirflowException(f"{job} ended without a result: {error}"[:MAX_ERROR_CHARACTERS])
    message = f"{job}: {result.error}"[:MAX_ERROR_CHARACTERS]
    return AirflowException(message) if result.may_be_tried_again else AirflowFailException(message)
