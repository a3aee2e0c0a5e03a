"""What a client of a SASL listener may send when, as Kafka's brokers have it
(``SaslServerAuthenticator``, KIP-43, KIP-152, KIP-368), and who it is.

Kafka authenticates; this follows what client and broker say to each other, and never takes an
exchange for complete before the broker does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from tideline.domain.foreign_text import quoted

API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
SASL_APIS = frozenset({SASL_HANDSHAKE, SASL_AUTHENTICATE})


class Mechanism(StrEnum):
    """What is relayed. GSSAPI is not: its tickets are for the broker's own name, and nothing in an
    answer tells that an exchange is complete."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"

    @property
    def is_scram(self) -> bool:
        return self in (Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a client is, as far as its connection tells. Without secrets: it may be logged."""

    mechanism: Mechanism | None = None
    """``None``: the listener authenticates nobody."""
    user: str | None = None
    """The name that Kafka has accepted (PLAIN, SCRAM). ``None``: nobody, or a name that Kafka alone
    knows: of OAUTHBEARER (which claim it is the broker's settings say) and of the owner of a
    delegation token."""
    by_delegation_token: bool = False

    @property
    def principal(self) -> str | None:
        """As Kafka's default principal builder has it: ``User:alice``, ``User:ANONYMOUS``; ``None``
        if only Kafka knows. A cluster with a ``principal.builder.class`` of its own may have
        another name for it: what somebody may do is asked of the broker."""
        if self.mechanism is None:
            return "User:ANONYMOUS"
        return None if self.user is None else f"User:{self.user}"

    def renewed_as(self, other: Identity) -> Identity | None:
        """What is known of this client once it has renewed its login as ``other`` and the broker
        has taken that; ``None``: it is somebody else all the same.

        The broker takes the same principal by the same mechanism only (KIP-368): the owner of a
        delegation token may renew by the password, and the other way round.
        """
        users = {self.user, other.user} - {None}
        if self.mechanism is not other.mechanism or len(users) > 1:
            return None
        return replace(other, user=other.user or self.user)

    def in_words(self) -> str:
        """For people: the principal in quotes, or how somebody has logged in of whom Kafka alone
        knows the name. No name that a client can have reads like the latter."""
        if (principal := self.principal) is not None:
            return quoted(principal)
        how = "a delegation token" if self.by_delegation_token else self.mechanism
        return f"a principal that only Kafka knows, by {how}"


ANONYMOUS = Identity()


class Stage(StrEnum):
    OPEN = "open"
    """Connected; the mechanism is not agreed on."""
    TOKENS = "tokens"
    """Client and broker exchange the mechanism's tokens."""
    DONE = "done"
    FAILED = "failed"


_TAKEN = {
    Stage.OPEN: frozenset({API_VERSIONS, SASL_HANDSHAKE}),
    Stage.TOKENS: frozenset({SASL_AUTHENTICATE}),
}


class Authentication:
    """One connection's. Transitions are told in the order in which requests are sent on, one SASL
    request at a time; times are seconds of any one clock."""

    def __init__(self) -> None:
        self.stage = Stage.OPEN
        self.identity: Identity | None = None
        """Of the last exchange that was complete."""
        self.expires_at: float | None = None
        """From then on nothing but a new exchange is taken; ``None``: never."""
        self._mechanism: Mechanism | None = None
        self._candidate: Identity | None = None
        self._sent_at = 0.0
        self._tokens = 0

    @property
    def is_again(self) -> bool:
        """Whether an exchange under way renews an earlier one."""
        return self.identity is not None

    def refuses(self, api_key: int, now: float) -> str | None:
        """Why the connection has to end if a request of ``api_key`` arrives now; ``None``: it is
        taken. Kafka ends it without an answer, too."""
        if self.stage is Stage.DONE:
            if api_key == SASL_AUTHENTICATE:
                return "it sent SaslAuthenticate without a SaslHandshake before"
            lapsed = self.expires_at is not None and now >= self.expires_at
            if lapsed and api_key != SASL_HANDSHAKE:
                return "its login has lapsed (connections.max.reauth.ms), and it did not renew it"
            return None
        if self.stage is Stage.FAILED:
            return "it goes on after its login was refused"
        if api_key in _TAKEN[self.stage]:
            return None
        return f"it sent a request of API {api_key} before its login was complete"

    def shakes(self, mechanism: Mechanism) -> None:
        """SaslHandshake is sent on."""
        self._mechanism = mechanism

    def shaken(self, accepted: bool) -> None:
        """The broker has answered it. A renewal that it does not take leaves the login as it was:
        Kafka says so when the last one was less than a second ago, and otherwise disconnects."""
        if accepted:
            self.stage, self._tokens = Stage.TOKENS, 0
        elif not self.is_again:
            self.stage = Stage.FAILED

    def says(self, token: bytes, now: float) -> None:
        """SaslAuthenticate is sent on."""
        assert self._mechanism is not None
        if self._tokens == 0:
            self._candidate = identity_of(self._mechanism, token)
        self._tokens += 1
        self._sent_at = now

    def told(self, accepted: bool, token: bytes, lifetime_ms: int) -> str | None:
        """The broker has answered it: the exchange is complete, goes on, or has failed. Why the
        connection has to end, or ``None``. ``lifetime_ms``: 0: for ever."""
        if not accepted:
            self.stage = Stage.FAILED
            return None
        if not self._is_complete(token):
            return None
        assert self._candidate is not None
        before, now = self.identity, self._candidate
        found = now if before is None else before.renewed_as(now)
        if found is None:
            self.stage = Stage.FAILED
            return "it renewed its login as somebody else"
        self.stage, self.identity = Stage.DONE, found
        # From when the client asked: never longer than the broker itself takes it.
        self.expires_at = self._sent_at + lifetime_ms / 1000 if lifetime_ms > 0 else None
        return None

    def _is_complete(self, token: bytes) -> bool:
        assert self._mechanism is not None
        if self._mechanism.is_scram:
            return self._tokens == 2 and token.startswith(b"v=")
        return not token  # OAUTHBEARER: else it is the broker's refusal, which the client confirms


def identity_of(mechanism: Mechanism, token: bytes) -> Identity:
    """Who the first token of an exchange says that it is. Strict: a token that Kafka might read in
    another way names nobody."""
    try:
        text = token.decode()
    except UnicodeDecodeError:
        return Identity(mechanism)
    if mechanism is Mechanism.PLAIN:
        parts = text.split("\0")
        return Identity(mechanism, parts[1] or None if len(parts) == 3 else None)
    if mechanism.is_scram:
        return _scram_identity(mechanism, text)
    return Identity(mechanism)


def _scram_identity(mechanism: Mechanism, text: str) -> Identity:
    """RFC 5802: ``n,[a=authzid],n=user,r=nonce[,extensions]``; ``tokenauth=true`` is Kafka's."""
    parts = text.split(",")
    if len(parts) < 4 or parts[0] != "n" or parts[2][:2] != "n=" or parts[3][:2] != "r=":
        return Identity(mechanism)
    if any(part.lower().startswith("tokenauth=") for part in parts[4:]):
        return Identity(mechanism, by_delegation_token=True)
    user = parts[2][2:].replace("=2C", ",").replace("=3D", "=")
    return Identity(mechanism, user or None)
