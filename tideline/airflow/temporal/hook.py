"""Temporal, by an Airflow connection of the type ``temporal``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException

from tideline.airflow.temporal.calls import connect, shared
from tideline.airflow.temporal.target import Target, target_of

if TYPE_CHECKING:
    from temporalio.client import Client


class TemporalHook(BaseHook):
    """Host and port are those of Temporal's frontend, the password an API key; extra holds
    ``namespace``, ``tls``, ``server_name``, ``server_ca``, ``client_cert``, ``client_key``, ``ui``.
    """

    conn_name_attr = "temporal_conn_id"
    default_conn_name = "temporal_default"
    conn_type = "temporal"
    hook_name = "Temporal"

    def __init__(self, temporal_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.temporal_conn_id = temporal_conn_id

    def target(self) -> Target:
        """For a task. Raises :class:`~airflow.sdk.exceptions.AirflowFailException` for a connection
        that is wrong."""
        return target_of(self.get_connection(self.temporal_conn_id))

    async def atarget(self) -> Target:
        """For a trigger; the same."""
        return target_of(await self.aget_connection(self.temporal_conn_id))

    async def get_client(self) -> Client:
        """A connection that everything in this event loop shares. Raises
        :class:`~tideline.airflow.temporal.calls.TemporalSilent`."""
        return await shared(await self.atarget())

    def test_connection(self) -> tuple[bool, str]:
        """For the button in the UI."""
        try:
            target = self.target()
            client = asyncio.run(connect(target))
        except AirflowException as error:
            return False, str(error)
        return True, f"Temporal at {target.address} answers; namespace {client.namespace}"
