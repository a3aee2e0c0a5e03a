"""Airflow's REST API, as far as the tour and the tests use it. Airflow itself is not imported."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from tideline.demo.patience import Patience
from tideline.errors import TidelineError, UnreachableError

T = TypeVar("T")
ENDED = frozenset({"success", "failed"})
TIMEOUT_S = 20.0
POLL_S = 0.5


class AirflowRefused(TidelineError):
    """The API answered with an error. ``status``: that of HTTP."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class AirflowApi:
    """One user's view of one Airflow. Raises :class:`UnreachableError` when it does not answer, or
    fails at it (5xx), :class:`AirflowRefused` with the answer when it refuses."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self.url = url
        self._credentials = {"username": user, "password": password}
        self._client = httpx.Client(base_url=url, timeout=TIMEOUT_S)

    @classmethod
    def of_home(cls, home: Path, url: str) -> AirflowApi:
        """That of an embedded stack."""
        passwords: dict[str, str] = json.loads(
            (home / "data" / "airflow" / "passwords.json").read_text()
        )
        user, password = next(iter(passwords.items()))
        return cls(url, user, password)

    def close(self) -> None:
        self._client.close()

    def call(self, method: str, path: str, body: object = None, **query: Any) -> Any:
        """``path`` below ``/api/v2``; the answer's JSON. What only reads is repeated."""
        if method != "GET":
            return self._call(method, path, body, query)
        again = Retrying(
            retry=retry_if_exception_type(UnreachableError),
            stop=stop_after_delay(TIMEOUT_S),
            wait=wait_fixed(POLL_S),
            reraise=True,
        )
        return again(self._call, method, path, body, query)

    def _call(self, method: str, path: str, body: object, query: Mapping[str, Any]) -> Any:
        answer = self._send(method, path, body, query)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            token = self._request("POST", "/auth/token", json=self._credentials)
            if token.is_success:
                self._client.headers["Authorization"] = f"Bearer {token.json()['access_token']}"
                answer = self._send(method, path, body, query)
        if not answer.is_success:
            told = (
                f"Airflow at {self.url}: {method} {path}: {answer.status_code} {answer.text[:500]}"
            )
            if answer.is_server_error:
                raise UnreachableError(told)
            raise AirflowRefused(told, answer.status_code)
        return answer.json() if answer.content else None

    def _send(
        self, method: str, path: str, body: object, query: Mapping[str, Any]
    ) -> httpx.Response:
        return self._request(method, f"/api/v2{path}", json=body, params=query)

    def _request(self, method: str, path: str, **what: Any) -> httpx.Response:
        try:
            return self._client.request(method, path, **what)
        except httpx.TransportError as error:
            raise UnreachableError(f"Airflow at {self.url} does not answer: {error}") from error

    def dags(self) -> dict[str, dict[str, Any]]:
        """By id, as far as they are read."""
        return {dag["dag_id"]: dag for dag in self.call("GET", "/dags")["dags"]}

    def import_errors(self) -> list[dict[str, Any]]:
        """Of DAG files."""
        return list(self.call("GET", "/importErrors")["import_errors"])

    def pause(self, dag: str, paused: bool) -> None:
        """No further task of a paused DAG begins."""
        self.call("PATCH", f"/dags/{dag}", {"is_paused": paused})

    def trigger(self, dag: str, **conf: Any) -> str:
        """A run by hand; its id, by which it is asked for once more where no answer came."""
        run = f"manual__{uuid4()}"
        body = {"dag_run_id": run, "logical_date": None, "conf": conf}
        try:
            self.call("POST", f"/dags/{dag}/dagRuns", body)
        except UnreachableError:
            try:
                self.call("POST", f"/dags/{dag}/dagRuns", body)
            except AirflowRefused as refusal:
                if refusal.status != httpx.codes.CONFLICT:
                    raise
        return run

    def runs(self, dag: str) -> list[dict[str, Any]]:
        """The newest first."""
        return list(self.call("GET", f"/dags/{dag}/dagRuns", order_by="-id")["dag_runs"])

    def run(self, dag: str, run: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"/dags/{dag}/dagRuns/{quote(run)}")
        return found

    def tasks(self, dag: str, run: str) -> list[dict[str, Any]]:
        path = f"/dags/{dag}/dagRuns/{quote(run)}/taskInstances"
        return list(self.call("GET", path)["task_instances"])

    def task(self, dag: str, run: str, name: str, index: int = -1) -> dict[str, Any] | None:
        """One task instance; ``None`` before there is one."""
        return next(
            (
                task
                for task in self.tasks(dag, run)
                if (task["task_id"], task["map_index"]) == (name, index)
            ),
            None,
        )

    def log(self, dag: str, run: str, name: str, attempt: int, index: int = -1) -> str:
        """What an attempt of a task logged, one entry per line."""
        return "\n".join(
            json.dumps(entry) for entry in self._entries(dag, run, name, attempt, index)
        )

    def failures(self, dag: str, run: str, name: str, attempt: int, index: int = -1) -> list[str]:
        """The messages with which an attempt of a task has failed; none while it runs."""
        return [
            str(detail["exc_value"])
            for entry in self._entries(dag, run, name, attempt, index)
            if isinstance(entry, dict)
            for detail in entry.get("error_detail") or ()
        ]

    def _entries(self, dag: str, run: str, name: str, attempt: int, index: int) -> list[Any]:
        path = f"/dags/{dag}/dagRuns/{quote(run)}/taskInstances/{name}/logs/{attempt}"
        return list(self.call("GET", path, map_index=index, full_content=True)["content"])

    def attempts(self, dag: str, run: str, name: str) -> list[dict[str, Any]]:
        """Every attempt of a task, with the times at which it was scheduled, began and ended."""
        path = f"/dags/{dag}/dagRuns/{quote(run)}/taskInstances/{name}/tries"
        return list(self.call("GET", path)["task_instances"])

    def value(self, dag: str, run: str, name: str, index: int = -1) -> Any:
        """What a task returned."""
        path = f"/dags/{dag}/dagRuns/{quote(run)}/taskInstances/{name}/xcomEntries/return_value"
        return self.call("GET", path, map_index=index, deserialize=True)["value"]

    def links(self, dag: str, run: str, name: str, index: int = -1) -> dict[str, Any]:
        """Address by name of each button of a task."""
        path = f"/dags/{dag}/dagRuns/{quote(run)}/taskInstances/{name}/links"
        found: dict[str, Any] = self.call("GET", path, map_index=index)["extra_links"]
        return found

    def providers(self) -> set[str]:
        """Packages."""
        return {one["package_name"] for one in self.call("GET", "/providers")["providers"]}

    def asset_events(self, dag: str, run: str) -> list[dict[str, Any]]:
        """What the run's tasks have told of assets."""
        found = self.call("GET", "/assets/events", source_dag_id=dag, source_run_id=run)
        return list(found["asset_events"])

    def answer(self, dag: str, run: str, name: str, choice: str) -> None:
        """To a task that asks a person."""
        path = f"/dags/{dag}/dagRuns/{quote(run)}/taskInstances/{name}/-1/hitlDetails"
        self.call("PATCH", path, {"chosen_options": [choice], "params_input": {}})

    def give_up(self, dag: str, run: str) -> None:
        """Fail a run and its tasks."""
        self.call("PATCH", f"/dags/{dag}/dagRuns/{quote(run)}", {"state": "failed"})

    def clear(self, dag: str, run: str, *names: str) -> None:
        """Let tasks run again, and what comes after them."""
        body = {
            "dag_run_id": run,
            "task_ids": list(names),
            "dry_run": False,
            "only_failed": True,
            "include_downstream": True,
            "reset_dag_runs": True,
        }
        self.call("POST", f"/dags/{dag}/clearTaskInstances", body)

    def steps(self, dag: str, run: str) -> list[tuple[Any, ...]]:
        """How far each task of a run has come: its attempt, that attempt's state, and how much it
        has logged while it runs."""
        fields = ("task_id", "map_index", "try_number", "state")
        return sorted(
            (*(task[field] for field in fields), self._logged(dag, run, task))
            for task in self.tasks(dag, run)
        )

    def _logged(self, dag: str, run: str, task: Mapping[str, Any]) -> int:
        if task["state"] != "running":
            return 0
        attempt = (task["task_id"], task["try_number"], task["map_index"])
        try:
            return len(self._entries(dag, run, *attempt))
        except (AirflowRefused, UnreachableError):
            return 0

    def until(
        self,
        what: str,
        probe: Callable[[], T | None],
        timeout_s: float,
        progress: Callable[[], object] = lambda: None,
    ) -> T:
        """Poll ``probe`` until it answers something true, over times at which Airflow does not
        answer. After ``timeout_s`` it is waited on as long as ``progress`` answers something else
        than ``timeout_s`` before. Raises :class:`TidelineError`."""
        patience = Patience(timeout_s)
        seen: object = None
        why = ""
        while True:
            late = patience.over
            try:
                if found := probe():
                    return found
                if late:
                    if (now := progress()) == seen:
                        break
                    seen = now
                    patience.renew()
            except UnreachableError as error:
                why = f" ({error})"
                if late:
                    break
            time.sleep(POLL_S)
        last = f"; last seen: {seen}" if seen else ""
        raise TidelineError(f"waited {timeout_s:g} s for {what}; see {self.url}{why}{last}")

    def ended(self, dag: str, run: str, timeout_s: float) -> str:
        """``success`` or ``failed``; ``timeout_s`` without a step of any task are too long."""

        def state() -> str | None:
            now = str(self.run(dag, run)["state"])
            return now if now in ENDED else None

        return self.until(
            f"the end of {dag}, run {run}", state, timeout_s, lambda: self.steps(dag, run)
        )
