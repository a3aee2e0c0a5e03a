"""Airflow on SQLite in the stack's home, with Tideline's DAGs: an outage of the stack's Postgres is
Tideline's, not Airflow's.

The components run one by one: ``airflow standalone`` would open a port beyond loopback and leave
processes behind.
"""

from __future__ import annotations

import base64
import http.client
import importlib.metadata
import json
import os
import secrets
import subprocess
import sysconfig
from functools import cached_property
from pathlib import Path

from tideline.installation import shipped
from tideline.stack.errors import NotReadyError, StackError
from tideline.stack.home import exclusive, read_json, write_private
from tideline.stack.parts.base import StackPart, StackPlan, installed_program
from tideline.stack.ports import LOOPBACK
from tideline.stack.probes import Address, show
from tideline.stack.processes import Program
from tideline.stack.spark_classes import driver_options, make_archive

LISTENER = "airflow"
USER = "admin"
PARALLELISM = 8
"""The four jobs at once, and as many tasks of a wave: none of them waits for those that fail."""
PREPARED_WITHIN_S = 600
DAG_IMPORT_S = 300
"""A file that takes longer is given up, and its DAG with it, until it is read the next time. By
default 30 s, which an import of two seconds takes where many programs share two cores."""
DAGS_READ_ANEW_S = 300
"""Each takes seconds of a core. A file that changes is read at once."""
HEALTH_TIMEOUT_S = 5.0
HEALTH = "/api/v2/monitor/health"
STOP_WAIT_S = 6

PASSED_ON = (
    "TIDELINE_AIRFLOW_",
    "TIDELINE_GC_",
    "TIDELINE_JOBS_PARALLELISM",
    "TIDELINE_MIGRATION_",
    "TIDELINE_TIERING_",
)
"""Settings of DAGs and jobs that the shell which starts the stack may set."""

SPARK = {
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
}
"""For jobs of seconds on one machine: most of such a run is the start of its JVM. They go as its
properties, since a directory of settings on its class path would forbid the class-data archive."""

COMPONENTS = {
    "api": ("api-server", "--workers", "1", "--host", LOOPBACK),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
"""Program name after ``airflow-``: arguments of the command ``airflow``."""

_REPORTED_AS = {
    "api": "metadatabase",
    "scheduler": "scheduler",
    "processor": "dag_processor",
    "triggerer": "triggerer",
}


class Airflow(StackPart):
    """One component. All share one home, which whichever is prepared first makes."""

    ready_within_s = 240

    def __init__(self, plan: StackPlan, component: str) -> None:
        super().__init__(plan)
        self.component = component

    @property
    def name(self) -> str:
        return f"airflow-{self.component}"

    @property
    def where(self) -> str:
        if self.component != "api":
            return ""
        return f"{self.url}, user {USER}, password {self.secrets['password']}"

    @property
    def needs(self) -> tuple[str, ...]:
        # A task that starts before the API answers fails at once.
        return ("airflow-api",) if self.component == "scheduler" else ()

    @property
    def url(self) -> str:
        return f"http://{show(self.plan.address(LISTENER))}"

    @property
    def home(self) -> Path:
        return self.plan.home.data / "airflow"

    @property
    def preparation(self) -> str:
        return "" if self._is_prepared else "first start: making Airflow's database"

    @cached_property
    def secrets(self) -> dict[str, str]:
        """The UI's password and Airflow's keys; made at the first look."""
        file = self.home / "secrets.json"
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with exclusive(self.home / "secrets.lock", 10, "another look at Airflow's secrets"):
            stored = read_json(file)
            if stored is None:
                stored = {name: secrets.token_hex(20) for name in ("jwt", "api")}
                stored["password"] = secrets.token_hex(12)
                stored["fernet"] = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
                write_private(file, json.dumps(stored))
        return stored

    def program(self) -> Program:
        arguments = COMPONENTS[self.component]
        if self.component == "api":
            arguments = (*arguments, "--port", str(self.plan.port(LISTENER)))
        return Program(
            name=self.name,
            command=(installed_program("airflow", "apache-airflow"), *arguments),
            environment=self._environment(),
            log=self.log(),
            stop_wait_s=STOP_WAIT_S,
        )

    def _environment(self) -> dict[str, str]:
        chosen = {name: v for name, v in os.environ.items() if name.startswith(PASSED_ON)}
        return chosen | {
            "AIRFLOW_HOME": str(self.home),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_SUBMIT_OPTS": " ".join(
                (*driver_options(), *(f"-D{key}={value}" for key, value in SPARK.items()))
            ),
            "AIRFLOW_CONN_SPARK_DEFAULT": "spark://local%5B2%5D",
            # spark-submit is found here, and uses this Python.
            "PATH": f"{sysconfig.get_path('scripts')}:{os.environ.get('PATH', os.defpath)}",
            "PYTHONUNBUFFERED": "1",
            "TIDELINE_CONFIG": str(self.plan.home.client_env),
            "TIDELINE_AIRFLOW_JOBS_CONFIG": str(self._jobs_env),
        }

    def prepare(self) -> None:
        with exclusive(
            self.plan.home.run / "airflow.lock",
            2 * PREPARED_WITHIN_S,
            "the making of Airflow's home",
        ):
            self.write_files()
            make_archive()
            if not self._is_prepared:
                self._run("db", "migrate")
                self._run("pools", "import", str(pools_file()))
                self._prepared.write_text(prepared_for())

    def write_files(self) -> None:
        """Configuration and settings, readable by their owner only."""
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.home / "dags").mkdir(mode=0o700, exist_ok=True)
        jobs = self.plan.environment("jobs")
        write_private(self._jobs_env, "".join(f"{name}={v}\n" for name, v in jobs.items()))
        write_private(self.home / "passwords.json", json.dumps({USER: self.secrets["password"]}))
        write_private(self.home / "airflow.cfg", self.configuration())

    def configuration(self) -> str:
        """``airflow.cfg``: what differs from Airflow's defaults."""
        home = literal(self.home)
        return f"""[core]
dags_folder = {home}/dags
load_examples = False
executor = LocalExecutor
parallelism = {PARALLELISM}
execution_api_server_url = {self.url}/execution/
simple_auth_manager_users = {USER}:admin
simple_auth_manager_passwords_file = {home}/passwords.json
fernet_key = {self.secrets["fernet"]}
dags_are_paused_at_creation = False
dagbag_import_timeout = {DAG_IMPORT_S}

[database]
sql_alchemy_conn = sqlite:///{home}/airflow.db

[api]
base_url = {self.url}
secret_key = {self.secrets["api"]}

[api_auth]
jwt_secret = {self.secrets["jwt"]}

[dag_processor]
dag_bundle_config_list = {literal(json.dumps(dag_bundles()))}
refresh_interval = 30
min_file_process_interval = {DAGS_READ_ANEW_S}
dag_file_processor_timeout = {2 * DAG_IMPORT_S}

[logging]
base_log_folder = {literal(self.plan.home.logs)}/airflow

[scheduler]
scheduler_idle_sleep_time = 0.5
scheduler_heartbeat_sec = 2

[usage_data_collection]
enabled = False
"""

    @property
    def _jobs_env(self) -> Path:
        return self.home / "jobs.env"

    @property
    def _prepared(self) -> Path:
        return self.home / "prepared"

    @property
    def _is_prepared(self) -> bool:
        """The database has the schema of the installed version, and the pools."""
        try:
            return self._prepared.read_text() == prepared_for()
        except FileNotFoundError:
            return False

    def _run(self, *arguments: str) -> None:
        made = subprocess.run(
            [installed_program("airflow", "apache-airflow"), *arguments],
            env={**os.environ, **self._environment()},
            cwd=self.plan.home.run,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=PREPARED_WITHIN_S,
        )
        if made.returncode != 0:
            said = (made.stderr.strip() or made.stdout.strip())[-2000:]
            raise StackError(f"`airflow {' '.join(arguments)}` failed: {said}")

    def probe(self) -> None:
        report = health(self.plan.address(LISTENER))
        if report.get(_REPORTED_AS[self.component]) != "healthy":
            raise NotReadyError(f"Airflow's health says of it: {report}")


def health(address: Address) -> dict[str, str]:
    """Component: status, as the API server says. Raises :class:`NotReadyError`."""
    connection = http.client.HTTPConnection(*address, timeout=HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", HEALTH)
        answer = connection.getresponse()
        body = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NotReadyError(f"{show(address)}{HEALTH}: {error or type(error).__name__}") from None
    finally:
        connection.close()
    return {name: str(part["status"]) for name, part in body.items() if isinstance(part, dict)}


def prepared_for() -> str:
    """What Airflow's database is made from."""
    return f"{importlib.metadata.version('apache-airflow')}\n{pools_file().read_text()}"


def pools_file() -> Path:
    return dags_folder() / "pools.json"


def literal(text: object) -> str:
    """As a value of ``airflow.cfg``, in which ``%`` begins a reference."""
    return str(text).replace("%", "%%")


def dag_bundles() -> list[dict[str, object]]:
    """Those of docs/airflow.md: the owner's own DAG files, and Tideline's beside them."""
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    return [
        {"name": "dags-folder", "classpath": local, "kwargs": {}},
        {"name": "tideline", "classpath": local, "kwargs": {"path": str(dags_folder())}},
    ]


def dags_folder() -> Path:
    """The DAG files themselves."""
    return shipped("dags")
