"""What the tour and the tests do where Airflow answers with an error."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tideline.demo import airflow_api
from tideline.demo.airflow_api import AirflowApi, AirflowRefused
from tideline.errors import UnreachableError


def api_that_answers(*statuses: int) -> tuple[AirflowApi, Iterator[int]]:
    """One answer after the other; those that are left."""
    left = iter(statuses)

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(next(left), json={"providers": []})

    api = AirflowApi("http://airflow", "somebody", "secret")
    api._client = httpx.Client(base_url=api.url, transport=httpx.MockTransport(answer))
    return api, left


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow_api, "POLL_S", 0.0)


def test_a_read_at_which_airflow_fails_is_repeated() -> None:
    api, left = api_that_answers(500, 503, 200)
    assert api.providers() == set()
    assert list(left) == []


def test_a_change_at_which_airflow_fails_is_not_repeated() -> None:
    api, left = api_that_answers(500, 200)
    with pytest.raises(UnreachableError, match="500"):
        api.pause("dag", True)
    assert list(left) == [200]


def test_what_airflow_refuses_is_not_repeated() -> None:
    api, left = api_that_answers(404, 200)
    with pytest.raises(AirflowRefused, match="404"):
        api.providers()
    assert list(left) == [200]


@pytest.mark.parametrize("answers", [(200,), (500, 200), (500, 409)])
def test_a_run_is_asked_for_once_more_where_no_answer_came(answers: tuple[int, ...]) -> None:
    api, left = api_that_answers(*answers)
    assert api.trigger("dag").startswith("manual__")
    assert list(left) == []


@pytest.mark.parametrize(("answers", "left_over"), [((409,), []), ((404, 200), [200])])
def test_a_run_that_is_refused_is_not_asked_for_again(
    answers: tuple[int, ...], left_over: list[int]
) -> None:
    api, left = api_that_answers(*answers)
    with pytest.raises(AirflowRefused):
        api.trigger("dag")
    assert list(left) == left_over


def test_a_run_that_gets_no_answer_twice_is_given_up() -> None:
    api, left = api_that_answers(500, 503, 200)
    with pytest.raises(UnreachableError, match="503"):
        api.trigger("dag")
    assert list(left) == [200]
