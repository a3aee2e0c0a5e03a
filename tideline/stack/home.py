"""Where a stack keeps its files: ``TIDELINE_HOME``, else ``.tideline`` in the current directory."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from tideline.errors import UsageError
from tideline.stack.errors import StackError

SOCKET_PATH_LIMIT = 100
"""Bytes. The kernel takes 107; supervisord binds a temporary name a little longer than ours."""

MIN_QUORUM = 3
"""The fewest voters of which one may be lost."""

FORBIDDEN_IN_PATHS = frozenset(",;%\"'\\\n")


class StackState(BaseModel):
    """What a home remembers from one start to the next (``stack.json``)."""

    model_config = ConfigDict(extra="forbid")

    id: str
    """Marks this home's processes (environment variable ``TIDELINE_STACK``)."""
    brokers: int
    parts: list[str]
    """Kinds of parts of the last start."""
    kafka_cluster_id: str
    postgres_data: str
    """Outside of the home when the system user that runs Postgres cannot reach it."""
    runtime_dir: str
    """Holds the supervisor's socket; a short path."""
    ports: dict[str, int]
    racks: int = 0
    """Over which the brokers go round; 0: each has a rack of its own."""
    controllers: int = 0
    """The first so many nodes are controllers, too; 0: all. Kept: the voters of a quorum that was
    formatted do not change."""
    secure: bool = False
    """TLS, logins and rights; fixed at the first start."""
    settings: dict[str, str] = {}
    """``TIDELINE_*`` variables of all processes of this stack, beside its own."""

    def rack(self, node: int) -> str:
        """The rack of a broker."""
        return f"rack-{(node - 1) % self.racks + 1 if self.racks else node}"

    @property
    def voters(self) -> range:
        """The nodes that are controllers."""
        return range(1, (self.controllers or self.brokers) + 1)


@dataclass(frozen=True)
class Home:
    """The directory of one stack. Nothing is created until :meth:`create`."""

    path: Path

    @classmethod
    def locate(cls, path: Path | str | None = None) -> Home:
        chosen = path or os.environ.get("TIDELINE_HOME") or ".tideline"
        return cls(Path(chosen).absolute())

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def client_env(self) -> Path:
        return self.path / "client.env"

    @property
    def credentials_file(self) -> Path:
        return self.path / "credentials.json"

    @property
    def tls(self) -> Path:
        """Certificates of a secured stack."""
        return self.path / "tls"

    @property
    def kafka_users_file(self) -> Path:
        return self.path / "kafka-users.json"

    @property
    def kafka_client_file(self) -> Path:
        """For Kafka's own tools (``--command-config``), of a secured stack."""
        return self.path / "client.properties"

    @property
    def state_file(self) -> Path:
        return self.path / "stack.json"

    def create(self) -> None:
        """Make the directories.

        Raises :class:`UsageError` for a path that a part's configuration cannot hold and
        :class:`StackError` when the place is not writable.
        """
        if wrong := sorted(set(str(self.path)) & FORBIDDEN_IN_PATHS):
            raise UsageError(
                f"{str(self.path)!r} cannot be the stack's home: {wrong[0]!r} has a meaning in "
                "the configuration of Kafka or supervisord. Set TIDELINE_HOME to another directory."
            )
        try:
            self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
            self.data.mkdir(mode=0o755, exist_ok=True)
            self.logs.mkdir(mode=0o755, exist_ok=True)
            self.run.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StackError(
                f"cannot create {error.filename}: {error.strerror}. "
                "Set TIDELINE_HOME to a directory that you can write."
            ) from error

    def state(self) -> StackState | None:
        """What the last start remembered; ``None`` when there was none."""
        try:
            return StackState.model_validate_json(self.state_file.read_text())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise StackError(
                f"{self.state_file} is not readable ({error.error_count()} problems). "
                "Remove the directory to start afresh."
            ) from error

    def remember(self, state: StackState) -> None:
        write_private(self.state_file, state.model_dump_json(indent=2) + "\n")

    def new_state(
        self,
        *,
        brokers: int,
        parts: list[str],
        cluster_id: str,
        racks: int = 0,
        secure: bool = False,
    ) -> StackState:
        """From three racks on one broker of each is a controller: the quorum outlives a rack."""
        identity = secrets.token_hex(8)
        socket = self.run / "supervisor.sock"
        runtime = self.run
        if len(os.fsencode(socket)) > SOCKET_PATH_LIMIT:
            runtime = outside_directory(identity) / "run"
        return StackState(
            id=identity,
            brokers=brokers,
            parts=parts,
            kafka_cluster_id=cluster_id,
            postgres_data=str(self.data / "postgres"),
            runtime_dir=str(runtime),
            ports={},
            controllers=racks if MIN_QUORUM <= racks < brokers else 0,
            secure=secure,
        )

    def purge(self) -> None:
        """Remove what a stack made, here and outside, and nothing that others put here.

        Only when none of its processes runs.
        """
        state = self.state()
        if state is not None:
            shutil.rmtree(outside_directory(state.id), ignore_errors=True)
        for directory in (self.data, self.logs, self.run, self.tls):
            shutil.rmtree(directory, ignore_errors=True)
        for file in (
            self.client_env,
            self.credentials_file,
            self.kafka_users_file,
            self.kafka_client_file,
            self.state_file,
        ):
            file.unlink(missing_ok=True)
        # A home with other people's files in it stays.
        with suppress(OSError):
            self.path.rmdir()

    @contextmanager
    def locked(self, wait_s: float = 120) -> Iterator[None]:
        """One start or stop at a time; waits up to ``wait_s`` seconds for another one to end."""
        with exclusive(self.run / "lock", wait_s, f"another start or stop of {self.path}"):
            yield


def meeting_place() -> Path:
    """Where all stacks of this user meet. Its name can be foreseen, so another user may have been
    there first: :class:`StackError` unless it is this user's alone."""
    path = Path(tempfile.gettempdir()) / f"tideline-{os.getuid()}"
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    is_private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    if not is_private or found.st_uid != os.getuid():
        raise StackError(
            f"{path} is no directory that belongs to this user alone, which the stacks of a user "
            "share. Remove it, or name a temporary directory of your own with TMPDIR."
        )
    return path


def outside_directory(identity: str) -> Path:
    """Where a home puts what cannot live inside it."""
    return Path(tempfile.gettempdir()) / f"tideline-{os.getuid()}-{identity}"


def write_private(path: Path, text: str) -> None:
    """Replace ``path`` in one step, readable by its owner only."""
    temporary = path.with_name(path.name + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    temporary.replace(path)


def read_json(path: Path) -> dict[str, str] | None:
    try:
        loaded: dict[str, str] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return loaded


@contextmanager
def exclusive(path: Path, wait_s: float, holder: str) -> Iterator[None]:
    """Hold the lock file ``path``; :class:`StackError` names ``holder`` when the wait ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            for attempt in Retrying(
                retry=retry_if_exception_type(BlockingIOError),
                wait=wait_fixed(0.1),
                stop=stop_after_delay(wait_s),
            ):
                with attempt:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except RetryError:
            raise StackError(
                f"waited {wait_s:.0f} s for {holder} to end. Try again when it is done."
            ) from None
        yield
    finally:
        os.close(descriptor)
