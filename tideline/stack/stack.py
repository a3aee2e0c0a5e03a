"""One embedded stack: start it, attach to it, disturb it, take it down."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tideline.errors import UsageError
from tideline.kafka.security import UNSECURED, KafkaSecurity
from tideline.stack import processes
from tideline.stack.credentials import load_or_create
from tideline.stack.endpoints import Endpoints
from tideline.stack.errors import StackError, StackNotRunningError
from tideline.stack.home import Home, StackState, exclusive, meeting_place, write_private
from tideline.stack.parts import ALL_PARTS, KINDS, ON_REQUEST, parts_of
from tideline.stack.parts.base import StackPart, StackPlan
from tideline.stack.parts.kafka import new_cluster_id
from tideline.stack.parts.postgres import Postgres, data_directory
from tideline.stack.ports import PortReservations, allocate, is_free, preferred
from tideline.stack.secured import CLIENT, Secured
from tideline.stack.startup import Report, Startup, await_ready
from tideline.stack.supervision import ProcessInfo, Supervisor

DEFAULT_BROKERS = 3
MAX_BROKERS = 9
STARTING_TURN_S = 1_200
"""How long a start waits while another stack of this user starts on the machine."""

KILLED_WITHIN_S = 10.0
"""From the SIGKILL of a program that did not end by itself until it is gone."""
LAST_BROKER_GRACE_S = 0.5

_STOP_STAGES = (("worker", "gateway", "airflow"), ("kafka", "temporal", "postgres"), ("s3",))
"""Kinds of parts that are stopped side by side; clients before what they talk to."""


@dataclass(frozen=True)
class Stopped:
    """What :meth:`Stack.down` did."""

    programs: list[str]
    leftovers: list[str]
    """Programs that no supervisor looked after any more."""
    seconds: float


@dataclass(frozen=True)
class ProgramStatus:
    """One row of ``tideline stack status``."""

    info: ProcessInfo
    where: str
    log: Path


class Stack:
    """A running stack. Program names: postgres, s3, temporal, kafka-N, gateway-N, worker; on
    request airflow-api, -scheduler, -processor, -triggerer."""

    def __init__(self, plan: StackPlan) -> None:
        self._plan = plan
        self._supervisor = _supervisor(plan)
        self._parts = {part.name: part for part in parts_of(plan, plan.state.parts)}
        self.was_running = False
        """Whether :meth:`up` found it running with every part that was asked for."""

    @classmethod
    def up(
        cls,
        home: Path | str | None = None,
        brokers: int | None = None,
        parts: Collection[str] = ALL_PARTS,
        progress: Report | None = None,
        *,
        racks: int | None = None,
        settings: Mapping[str, str] | None = None,
        secure: bool | None = None,
    ) -> Stack:
        """Start what does not run yet; returns when every part answers.

        ``home`` defaults to ``TIDELINE_HOME``, ``brokers`` to the home's own number, else 3.
        ``racks``: over which the brokers go round; ``settings``: ``TIDELINE_*`` variables of the
        stack's processes. Both hold from the next start of what they concern, and for the home;
        ``None`` leaves them: at first a rack for each broker, and no variables. ``secure``: TLS,
        logins and rights (docs/stack.md); fixed at the first start, ``None``: the home's own.
        Raises :class:`StackError` that names the part; what was started is stopped again, unless
        the stack ran before.
        """
        _check(brokers, racks, parts)
        place = Home.locate(home)
        place.create()
        with place.locked():
            state = place.state() or place.new_state(
                brokers=brokers or DEFAULT_BROKERS,
                parts=[],
                cluster_id=new_cluster_id(),
                racks=racks or 0,
                secure=bool(secure),
            )
            if secure is not None and secure != state.secure:
                kind = "a secured stack" if state.secure else "a stack that is not secured"
                raise UsageError(
                    f"{place.path} holds {kind}: that is fixed at the first start. Use another "
                    "TIDELINE_HOME."
                )
            if brokers is not None and brokers != state.brokers:
                raise UsageError(
                    f"{place.path} holds a stack of {state.brokers} brokers, not {brokers}: the "
                    f"number is fixed at the first start. Use --brokers {state.brokers}, or "
                    "another TIDELINE_HOME."
                )
            if racks is not None:
                state.racks = racks
            if settings is not None:
                state.settings = dict(settings)
            credentials = load_or_create(place)
            if state.secure:
                Secured(place).make()
            supervisor = _supervisor(StackPlan(place, state, credentials))
            if supervisor.is_running():
                up = {name for name, info in supervisor.processes().items() if info.is_up}
                kept = {
                    kind
                    for kind in state.parts
                    if kind not in ON_REQUEST or any(name.startswith(kind) for name in up)
                }
                wanted = {*kept, *parts}
                state.parts = [kind for kind in KINDS if kind in wanted]
                stack = cls(StackPlan(place, state, credentials))
                stack._extend(progress or _ignore)
                return stack
            processes.end(processes.marked(state.id))
            state.parts = [kind for kind in KINDS if kind in parts]
            with exclusive(_turn_file(), STARTING_TURN_S, "the start of another stack"):
                reservations = PortReservations()
                others = reservations.of_others(state.id)
                state.ports = allocate(
                    preferred(state.brokers, state.secure),
                    state.ports,
                    lambda port: port not in others and is_free(port),
                )
                state.postgres_data = _postgres_data(place, state)
                place.remember(state)
                stack = cls(StackPlan(place, state, credentials))
                stack._launch()
                reservations.reserve(state.id, stack.supervisor_pid, state.ports.values())
                stack._start_all(progress or _ignore)
            return stack

    @classmethod
    def attach(cls, home: Path | str | None = None, *, running: bool = True) -> Stack:
        """The stack of ``home``; :class:`StackNotRunningError` when there is none or, unless
        ``running`` is False, when it does not run."""
        stack = cls._known(Home.locate(home))
        if stack is None or (running and not stack._supervisor.is_running()):
            raise StackNotRunningError(
                f"no stack runs in {Home.locate(home).path}. Start one: tideline stack up"
            )
        return stack

    @classmethod
    def take_down(cls, home: Path | str | None = None) -> Stopped:
        """Stop whatever runs of the stack in ``home``, supervised or left over."""
        stack = cls._known(Home.locate(home))
        return stack.down() if stack is not None else Stopped([], [], 0.0)

    @classmethod
    def purge(cls, home: Path | str | None = None) -> Stopped:
        """Stop the stack in ``home`` and remove its data, logs and credentials for good."""
        stopped = cls.take_down(home)
        Home.locate(home).purge()
        return stopped

    @classmethod
    def _known(cls, place: Home) -> Stack | None:
        state = place.state()
        return None if state is None else cls(StackPlan(place, state, load_or_create(place)))

    def _launch(self) -> None:
        self._supervisor.launch([part.program() for part in self._parts.values()])

    def _start_all(self, report: Report) -> None:
        try:
            Startup(list(self._parts.values()), self._supervisor, report).run()
        except BaseException:
            self._stop_everything()
            raise
        self._write_client_env()

    def _extend(self, report: Report) -> None:
        before = self._supervisor.processes()
        self.was_running = all(name in before and before[name].is_up for name in self._parts)
        self._supervisor.update([part.program() for part in self._parts.values()])
        self._plan.home.remember(self._plan.state)
        Startup(list(self._parts.values()), self._supervisor, report).run()
        self._write_client_env()

    def _write_client_env(self) -> None:
        environment = self.environment("worker")
        del environment["TIDELINE_METRICS_ADDRESS"]
        environment["TIDELINE_GATEWAY_BOOTSTRAP"] = self.endpoints.gateway_bootstrap
        environment["TIDELINE_JOBS_POSTGRES_DSN"] = self.endpoints.postgres_dsn("jobs")
        s3 = self.endpoints.s3  # commands start jobs, too, which delete
        environment |= {
            "TIDELINE_S3_ACCESS_KEY": s3.access_key,
            "TIDELINE_S3_SECRET_KEY": s3.secret_key,
        }
        lines = [f"{name}={value}\n" for name, value in environment.items()]
        write_private(self._plan.home.client_env, "".join(lines))
        if (secured := self._plan.secured) is not None:
            write_private(self._plan.home.kafka_client_file, secured.java_properties(CLIENT))

    @property
    def home(self) -> Path:
        return self._plan.home.path

    @property
    def brokers(self) -> int:
        return self._plan.state.brokers

    @property
    def endpoints(self) -> Endpoints:
        return self._plan.endpoints

    def environment(self, role: str) -> dict[str, str]:
        """The ``TIDELINE_*`` environment of ``worker``, ``jobs`` or ``gateway-<node id>``."""
        return self._plan.environment(role)

    def kafka_login(self, user: str = CLIENT) -> KafkaSecurity:
        """How a client connects to brokers and gateways: in clear text, or as ``user``, one of
        :data:`tideline.stack.secured.USERS`."""
        secured = self._plan.secured
        return UNSECURED if secured is None else secured.login(user)

    def client_properties(self) -> str:
        """The same for Java's clients, as properties; empty: in clear text."""
        secured = self._plan.secured
        return "" if secured is None else secured.java_properties(CLIENT)

    @property
    def programs(self) -> list[str]:
        return list(self._parts)

    def status(self) -> list[ProgramStatus]:
        infos = self._supervisor.processes()
        return [
            ProgramStatus(infos[name], part.where, part.program().readable_log)
            for name, part in self._parts.items()
            if name in infos
        ]

    def log_path(self, name: str) -> Path:
        return self._part(name).program().readable_log

    def data_path(self, name: str) -> Path:
        """Where a program keeps its data; of a broker: its log directory."""
        self._part(name)
        if name == "postgres":
            return Path(self._plan.state.postgres_data)
        return self._plan.home.data / name

    def pid(self, name: str) -> int:
        """Raises :class:`StackError` when the program does not run."""
        info = self._supervisor.process(name)
        if info.pid is None:
            raise StackError(f"{name} does not run: {info.state}, {info.why}")
        return info.pid

    @property
    def supervisor_pid(self) -> int:
        return self._supervisor.pid()

    def kill(self, name: str, *, restart: bool = True) -> None:
        """SIGKILL. Supervision restarts it at once, unless ``restart`` is False."""
        members = processes.family(self.pid(name))
        if restart:
            processes.signal_all(members, signal.SIGKILL)
        else:
            self._supervisor.kill(name)
            processes.signal_all(members[1:], signal.SIGKILL)
        psutil.wait_procs(members, timeout=5)

    def stop(self, name: str) -> None:
        """An orderly stop; returns when the process is gone. It stays down."""
        self.resume(name)
        bound_s = self._part(name).program().stop_wait_s
        self._supervisor.stop(name, bound_s + KILLED_WITHIN_S)

    def start(self, name: str, *, wait: bool = True, within_s: float | None = None) -> None:
        """Start a program that is down and, with ``wait``, wait until it answers."""
        self._part(name).prepare()
        self._supervisor.start(name)
        if wait:
            self.wait_ready(name, within_s=within_s)

    def configure(self, settings: Mapping[str, str]) -> None:
        """Other ``settings`` than :meth:`up` was given; a program has them from its next
        :meth:`start` on."""
        self._plan.state.settings = dict(settings)
        self._plan.home.remember(self._plan.state)
        self._supervisor.update([part.program() for part in self._parts.values()])

    def lose_postgres(self) -> None:
        """SIGKILL, and its data is gone for good. It stays down."""
        self.kill("postgres", restart=False)
        shutil.rmtree(self.data_path("postgres"))

    def back_up_postgres(self) -> Path:
        """A base backup, beside its data, while it runs; only the newest is kept."""
        part = self._part("postgres")
        assert isinstance(part, Postgres)
        return part.back_up()

    def start_postgres_anew(self, backup: Path | None = None) -> None:
        """Start one after :meth:`lose_postgres`: as ``backup`` has it, which is used up, or empty
        but for the schema, the roles and what this stack attests."""
        if backup is not None:
            backup.rename(self.data_path("postgres"))
        self.start("postgres")
        self._part("postgres").finish()

    def wait_ready(self, name: str, *, within_s: float | None = None) -> None:
        """Wait until the program answers, through restarts by the supervision."""
        await_ready(self._part(name), self._supervisor, within_s=within_s, restarts_allowed=True)

    def suspend(self, name: str) -> None:
        """SIGSTOP the program and its children."""
        processes.signal_all(processes.family(self.pid(name)), signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT; nothing happens to a program that is not suspended or not running."""
        pid = self._supervisor.process(name).pid
        if pid is not None:
            processes.signal_all(reversed(processes.family(pid)), signal.SIGCONT)

    def down(self) -> Stopped:
        """Stop everything; returns when no process of this stack is left."""
        with self._plan.home.locked():
            return self._stop_everything()

    def _stop_everything(self) -> Stopped:
        since = time.monotonic()
        stopped = self._stop_supervised() if self._supervisor.is_running() else []
        found = processes.marked(self._plan.state.id)
        leftovers = processes.end(found) if found else []
        remaining = processes.marked(self._plan.state.id)
        if remaining:
            named = ", ".join(f"{each.program} (pid {each.process.pid})" for each in remaining)
            raise StackError(f"these processes did not end: {named}. Kill them by their pid.")
        return Stopped(stopped, leftovers, time.monotonic() - since)

    def _stop_supervised(self) -> list[str]:
        running = [name for name, info in self._supervisor.processes().items() if info.pid]
        for stage in _STOP_STAGES:
            names = [name for name in running if name.partition("-")[0] in stage]
            brokers = [name for name in names if name.startswith("kafka-")]
            with ThreadPoolExecutor(max(1, len(names))) as pool:
                others = [pool.submit(self.stop, name) for name in names if name not in brokers]
                self._stop_brokers(brokers)
            for stopping in others:
                stopping.result()
        supervisor = psutil.Process(self._supervisor.pid())
        self._supervisor.shut_down()
        with suppress(psutil.TimeoutExpired):
            supervisor.wait(10)
        return running

    def _stop_brokers(self, names: list[str]) -> None:
        """The last one of several waits for a quorum that is gone, so it is not waited for."""
        if not names:
            return
        with ThreadPoolExecutor(len(names)) as pool:
            stopping = [pool.submit(self.stop, name) for name in names]
            if len(names) > 1:
                for count, _ in enumerate(as_completed(stopping), start=1):
                    if count == len(names) - 1:
                        break
                wait(stopping, timeout=LAST_BROKER_GRACE_S)
                for name, stop in zip(names, stopping, strict=True):
                    if not stop.done():
                        self._supervisor.kill(name)
        for stop in stopping:
            stop.result()

    def _part(self, name: str) -> StackPart:
        if name not in self._parts:
            known = ", ".join(self._parts)
            raise UsageError(f"{name!r} is no program of this stack. Choose one of: {known}.")
        return self._parts[name]


def _supervisor(plan: StackPlan) -> Supervisor:
    return Supervisor(plan.home, plan.state, plan.credentials.supervisor)


def _check(brokers: int | None, racks: int | None, parts: Collection[str]) -> None:
    if brokers is not None and not 1 <= brokers <= MAX_BROKERS:
        raise UsageError(f"{brokers} brokers: choose 1 to {MAX_BROKERS}")
    if racks is not None and not 1 <= racks <= MAX_BROKERS:
        raise UsageError(f"{racks} racks: choose 1 to {MAX_BROKERS}")
    unknown = sorted(set(parts) - set(KINDS))
    if unknown or not parts:
        raise UsageError(
            f"{', '.join(unknown) or 'nothing'} is no part of the stack. "
            f"Choose among: {', '.join(KINDS)}."
        )


def _postgres_data(place: Home, state: StackState) -> str:
    if (Path(state.postgres_data) / "PG_VERSION").exists():
        return state.postgres_data
    return str(data_directory(place.data / "postgres", state.id))


def _turn_file() -> Path:
    return meeting_place() / "starting.lock"


def _ignore(_: object) -> None:
    """No progress is shown."""
