"""What a client may send before, during and after a login, and who it is."""

from __future__ import annotations

import pytest

from tideline.domain.sasl import (
    ANONYMOUS,
    API_VERSIONS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Authentication,
    Identity,
    Mechanism,
    Stage,
    identity_of,
)

METADATA, PRODUCE = 3, 0
PLAIN, SCRAM, OAUTH = Mechanism.PLAIN, Mechanism.SCRAM_SHA_256, Mechanism.OAUTHBEARER
ALICE = b"\0alice\0secret"


def taken(state: Authentication, now: float = 0.0) -> set[int]:
    every = {METADATA, PRODUCE, API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE}
    return {key for key in every if state.refuses(key, now) is None}


def shaken(mechanism: Mechanism, state: Authentication | None = None) -> Authentication:
    state = state or Authentication()
    state.shakes(mechanism)
    state.shaken(True)
    return state


def logged_in(lifetime_ms: int = 0, now: float = 0.0) -> Authentication:
    state = shaken(PLAIN)
    state.says(ALICE, now)
    state.told(True, b"", lifetime_ms)
    return state


def test_before_anything_only_versions_and_the_handshake_are_taken() -> None:
    assert taken(Authentication()) == {API_VERSIONS, SASL_HANDSHAKE}


def test_between_handshake_and_outcome_only_tokens_are_taken() -> None:
    assert taken(shaken(PLAIN)) == {SASL_AUTHENTICATE}


def test_a_mechanism_that_the_broker_does_not_take_ends_it() -> None:
    state = Authentication()
    state.shakes(OAUTH)
    state.shaken(False)
    assert taken(state) == set()


@pytest.mark.parametrize(
    ("mechanism", "answers", "complete"),
    [
        (PLAIN, [b""], True),
        (PLAIN, [b"more"], False),
        (SCRAM, [b"r=nx,s=c2FsdA==,i=4096"], False),
        (SCRAM, [b"r=nx,s=c2FsdA==,i=4096", b"v=AAAA"], True),
        (SCRAM, [b"v=AAAA"], False),
        (SCRAM, [b"r=nx,s=c2FsdA==,i=4096", b""], False),
        (OAUTH, [b""], True),
        (OAUTH, [b'{"status":"invalid_token"}'], False),
    ],
)
def test_an_exchange_is_complete_when_the_broker_has_said_all(
    mechanism: Mechanism, answers: list[bytes], complete: bool
) -> None:
    state = shaken(mechanism)
    for answer in answers:
        assert state.identity is None
        state.says(b"n,,n=alice,r=n" if mechanism is SCRAM else ALICE, 0.0)
        state.told(True, answer, 0)
    assert (state.stage is Stage.DONE) is complete
    assert (METADATA in taken(state)) is complete
    assert (state.identity is not None) is complete


def test_a_login_that_was_refused_takes_nothing_more() -> None:
    state = shaken(PLAIN)
    state.says(ALICE, 0.0)
    state.told(False, b"", 0)
    assert taken(state) == set()
    assert state.identity is None


def test_who_is_logged_in_sends_everything_but_tokens_without_a_handshake() -> None:
    state = logged_in()
    assert taken(state, now=1e9) == {METADATA, PRODUCE, API_VERSIONS, SASL_HANDSHAKE}
    assert state.identity == Identity(PLAIN, "alice")


def test_a_login_that_has_lapsed_takes_only_its_renewal() -> None:
    state = logged_in(lifetime_ms=2_000, now=10.0)
    assert METADATA in taken(state, now=11.999)
    assert taken(state, now=12.0) == {SASL_HANDSHAKE}
    shaken(PLAIN, state)
    assert taken(state, now=12.1) == {SASL_AUTHENTICATE}
    state.says(ALICE, 12.1)
    assert state.told(True, b"", 2_000) is None
    assert METADATA in taken(state, now=14.0)
    assert taken(state, now=14.1) == {SASL_HANDSHAKE}


def test_a_renewal_that_is_refused_at_the_handshake_leaves_the_login() -> None:
    state = logged_in(lifetime_ms=2_000)
    state.shakes(PLAIN)
    state.shaken(False)
    assert METADATA in taken(state, now=1.0)
    assert taken(state, now=2.0) == {SASL_HANDSHAKE}


BY_TOKEN = b"n,,n=id,r=nonce,tokenauth=true"
BY_PASSWORD = b"n,,n=alice,r=nonce"


def scram_login(state: Authentication, first: bytes) -> str | None:
    shaken(SCRAM, state)
    state.says(first, 1.0)
    assert state.told(True, b"r=nonce", 0) is None
    state.says(b"c=biws", 1.0)
    return state.told(True, b"v=", 2_000)


@pytest.mark.parametrize(
    ("before", "after", "principal"),
    [
        (BY_TOKEN, BY_PASSWORD, "User:alice"),
        (BY_PASSWORD, BY_TOKEN, "User:alice"),
        (BY_TOKEN, BY_TOKEN, None),
    ],
)
def test_the_owner_of_a_delegation_token_renews_by_either(
    before: bytes, after: bytes, principal: str | None
) -> None:
    """The broker, which alone knows whose token it is, takes nobody else."""
    state = Authentication()
    assert scram_login(state, before) is None
    assert scram_login(state, after) is None
    assert METADATA in taken(state, now=2.0)
    assert state.identity is not None
    assert state.identity.principal == principal


def test_a_name_that_a_renewal_has_told_is_held_to() -> None:
    state = Authentication()
    for first in (BY_TOKEN, BY_PASSWORD):
        assert scram_login(state, first) is None
    assert "somebody else" in str(scram_login(state, b"n,,n=bob,r=nonce"))


def test_another_mechanism_is_somebody_else() -> None:
    state = logged_in(lifetime_ms=2_000)
    assert "somebody else" in str(scram_login(state, BY_TOKEN))


def test_who_renews_as_somebody_else_is_disconnected() -> None:
    state = shaken(PLAIN, logged_in(lifetime_ms=2_000))
    state.says(b"\0bob\0secret", 1.0)
    assert "somebody else" in str(state.told(True, b"", 2_000))
    assert taken(state) == set()


@pytest.mark.parametrize(
    ("mechanism", "token", "user", "principal"),
    [
        (PLAIN, ALICE, "alice", "User:alice"),
        (PLAIN, b"alice\0alice\0secret", "alice", "User:alice"),
        (PLAIN, b"alice", None, None),
        (PLAIN, b"\0a\0b\0c", None, None),
        (PLAIN, b"\0\xff\0secret", None, None),
        (SCRAM, b"n,,n=alice,r=nonce", "alice", "User:alice"),
        (SCRAM, b"n,a=alice,n=alice,r=nonce", "alice", "User:alice"),
        (SCRAM, b"n,,n=a=2Cb=3Dc,r=nonce", "a,b=c", "User:a,b=c"),
        (SCRAM, b"n,,n=id,r=nonce,tokenauth=true", None, None),
        (SCRAM, b"n,,r=nonce,n=alice", None, None),
        (SCRAM, b"y,,n=alice,r=nonce", None, None),
        (OAUTH, b"n,,\x01auth=Bearer e30.e30.\x01\x01", None, None),
    ],
)
def test_a_first_token_names_its_user_or_nobody(
    mechanism: Mechanism, token: bytes, user: str | None, principal: str | None
) -> None:
    found = identity_of(mechanism, token)
    assert found.user == user
    assert found.principal == principal
    assert found.by_delegation_token == (b"tokenauth" in token)
    assert "secret" not in repr(found)


def test_a_listener_without_sasl_knows_nobody() -> None:
    assert ANONYMOUS.principal == "User:ANONYMOUS"
