"""What supervisord does not offer over XML-RPC: an unclean end that is not undone at once."""

from __future__ import annotations

import signal
from typing import Any

from supervisor.states import RUNNING_STATES, ProcessStates


class TidelineRPC:
    """Methods of the namespace ``tideline``; runs inside supervisord."""

    def __init__(self, supervisord: Any) -> None:
        self._supervisord = supervisord

    def kill(self, name: str) -> bool:
        """SIGKILL the program and do not restart it. False when it does not run."""
        group = self._supervisord.process_groups.get(name)
        process = group.processes.get(name) if group is not None else None
        if process is None:
            return False
        process.administrative_stop = True
        if process.state not in (*RUNNING_STATES, ProcessStates.STOPPING):
            return False
        process.kill(signal.SIGKILL)
        return True


def make_interface(supervisord: Any, **_: str) -> TidelineRPC:
    """Named in supervisord's configuration as ``supervisor.rpcinterface_factory``."""
    return TidelineRPC(supervisord)
