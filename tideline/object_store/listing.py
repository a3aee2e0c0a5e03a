"""A page of a listing, from what S3 answers to ListObjectsV2.

boto3 takes some 75 ms of CPU to read a page of a thousand keys, most of it for shapes and times;
this takes a fifth to a tenth of that. What is no listing of what was asked for is an error, never
an empty one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree

MAX_PAGE = 32 * 1024 * 1024
"""bytes; a thousand of the longest keys, each byte escaped, are a ninth of it"""


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """One object as a listing shows it. ``size`` in bytes; ``last_modified`` by S3's clock."""

    key: str
    size: int
    last_modified: datetime
    etag: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """``further``: what the next page is asked for with; ``None``: there is none."""

    entries: list[ObjectEntry]
    prefixes: list[str]
    further: str | None


@dataclass(frozen=True, slots=True)
class Asked:
    """One page. ``start_after``: a key; ``delimiter``: what ends a common prefix."""

    prefix: str
    start_after: str | None = None
    delimiter: str | None = None
    token: str | None = None
    """The ``further`` of the page before."""

    def query(self) -> str:
        """As it is sent and signed: names in order, escaped."""
        given: Mapping[str, str | None] = {
            "continuation-token": self.token,
            "delimiter": self.delimiter,
            "encoding-type": "url",
            "list-type": "2",
            "prefix": self.prefix,
            "start-after": self.start_after,
        }
        return "&".join(
            f"{name}={quote(value, safe='~')}" for name, value in given.items() if value is not None
        )


def page_of(body: bytes, asked: Asked) -> Page:
    """Raises ``ResponseStreamingError`` for what is no page of what was ``asked`` for."""
    try:
        root = ElementTree.fromstring(body)
        if plain(root.tag) != "ListBucketResult":
            raise ValueError(f"the answer is a {plain(root.tag)}")
        return _page(root, asked)
    except (ElementTree.ParseError, KeyError, ValueError) as error:
        from botocore.exceptions import ResponseStreamingError

        raise ResponseStreamingError(error=f"no listing: {error!r}") from error


def _page(root: ElementTree.Element, asked: Asked) -> Page:
    found: dict[str, str] = {}
    contents: list[ElementTree.Element] = []
    common: list[str] = []
    for child in root:
        match name := plain(child.tag):
            case "Contents":
                contents.append(child)
            case "CommonPrefixes":
                common += [one.text or "" for one in child if plain(one.tag) == "Prefix"]
            case _:
                found[name] = child.text or ""
    escaped = found.get("EncodingType") == "url"
    entries = [_entry(one, escaped) for one in contents]
    prefixes = [unquote_plus(one) if escaped else one for one in common]
    for key in (*(one.key for one in entries), *prefixes):
        if not key.startswith(asked.prefix):
            raise ValueError(f"{key!r} is not under {asked.prefix!r}")
    further = None
    if found.get("IsTruncated", "false").strip().lower() == "true":
        further = found.get("NextContinuationToken")
        if not further or further == asked.token:
            raise ValueError("there is more, but the answer does not say how to go on")
    return Page(entries, prefixes, further)


def _entry(one: ElementTree.Element, escaped: bool) -> ObjectEntry:
    found = {plain(child.tag): child.text or "" for child in one}
    key = found["Key"]
    return ObjectEntry(
        unquote_plus(key) if escaped else key,
        int(found["Size"]),
        _time(found["LastModified"]),
        found.get("ETag", ""),
    )


def _time(text: str) -> datetime:
    # What S3 writes; boto3 reads other forms, too.
    if text.endswith("Z"):
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            pass
    from botocore.utils import parse_timestamp

    found: datetime = parse_timestamp(text)
    return found


def plain(tag: str) -> str:
    """Without its namespace."""
    return tag[tag.rfind("}") + 1 :]


def names_a_tag(body: bytes) -> bool:
    """Whether an answer to a call that makes an object names its tag (``CopyObjectResult`` and its
    like)."""
    try:
        root = ElementTree.fromstring(body.strip())
    except ElementTree.ParseError:
        return False
    return any(plain(one.tag) == "ETag" and (one.text or "").strip() for one in root)
