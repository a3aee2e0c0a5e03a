"""A worker needs no operator's rights on Temporal where the search attributes are there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.api.operatorservice.v1 import ListSearchAttributesResponse
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from tideline import temporal
from tideline.domain.messages import SEARCH_ATTRIBUTES
from tideline.errors import RefusedError


class Namespace:
    """Some search attributes, and rights or none."""

    def __init__(self, known: set[str], denied: RPCStatusCode | None = None) -> None:
        self.known, self.denied = known, denied
        self.client = cast(
            Client,
            SimpleNamespace(
                namespace="default",
                operator_service=SimpleNamespace(
                    list_search_attributes=self.list, add_search_attributes=self.add
                ),
                workflow_service=SimpleNamespace(count_workflow_executions=self.count),
            ),
        )

    async def list(self, _: Any) -> ListSearchAttributesResponse:
        if self.denied is not None:
            raise RPCError("Request unauthorized.", self.denied, b"")
        types = {name: temporal._TYPES[SEARCH_ATTRIBUTES[name]] for name in self.known}
        return ListSearchAttributesResponse(custom_attributes=types)

    async def add(self, request: Any) -> None:
        self.known |= set(request.search_attributes)

    async def count(self, request: Any, timeout: object) -> None:
        name, *_ = request.query.split()
        if name not in self.known:
            raise RPCError(f"invalid query: {name}", RPCStatusCode.INVALID_ARGUMENT, b"")


async def test_what_is_missing_is_added_once_by_whoever_may() -> None:
    namespace = Namespace({"TidelineTopic"})
    assert await temporal.prepare(namespace.client) == sorted(
        SEARCH_ATTRIBUTES.keys() - {"TidelineTopic"}
    )
    assert namespace.known == SEARCH_ATTRIBUTES.keys()
    assert await temporal.prepare(namespace.client) == []


@pytest.mark.parametrize("denied", [RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED])
async def test_a_worker_without_rights_starts_where_all_are_there(denied: RPCStatusCode) -> None:
    await temporal.need_search_attributes(Namespace(set(SEARCH_ATTRIBUTES), denied).client)


async def test_it_names_what_is_missing_and_the_command() -> None:
    namespace = Namespace(
        set(SEARCH_ATTRIBUTES) - {"TidelineWaits"}, RPCStatusCode.PERMISSION_DENIED
    )
    with pytest.raises(RefusedError, match=r"TidelineWaits, .*`tideline temporal prepare`"):
        await temporal.need_search_attributes(namespace.client)


async def test_one_of_another_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = Namespace(set(SEARCH_ATTRIBUTES))
    monkeypatch.setitem(SEARCH_ATTRIBUTES, "TidelineBoundary", "Keyword")
    known = ListSearchAttributesResponse(
        custom_attributes={"TidelineBoundary": temporal._TYPES["Int"]}
    )

    async def listed(_: Any) -> ListSearchAttributesResponse:
        return known

    namespace.client.operator_service.list_search_attributes = listed  # type: ignore[method-assign]
    with pytest.raises(RefusedError, match="is not of type Keyword"):
        await temporal.need_search_attributes(namespace.client)
