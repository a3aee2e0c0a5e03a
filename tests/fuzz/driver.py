"""Hostile clients of a running gateway: what each connection does is made from the seed and its
number, so that a run can be had again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from random import Random

from tests.fuzz.frames import Made, Names, corpus, framed, make, mutated, numbered, offered

ADDRESSES = 200
"""Of this machine (127.77/16): the bounds for one address do not end the run's own storm."""
REMEMBERED = 4_000
"""Connections whose frames are kept, for the one that a finding names."""
ROUND = 500
"""Connections that share a corpus."""
QUIET_S = 2.0
"""Without an answer for so long the request is taken to be waiting, and left."""
LATE = 1_000_000
"""Correlation id of the request behind a batch, which tells that all before it was looked at."""
PROBE = bytes((0, 18, 0, 0)) + LATE.to_bytes(4, "big") + b"\xff\xff"
"""ApiVersions."""
HUGE = (2**31 - 1, -1, 0, -(2**31), 104_857_600, 104_857_601, 20_000_000, 524_289, 16_384)
RESET = struct.pack("ii", 1, 0)


class Hostile:
    """Sends frames until so many were sent, or the time is over."""

    def __init__(
        self,
        address: tuple[str, int],
        seed: int,
        names: Names,
        *,
        frames: int,
        seconds: float,
        at_once: int = 12,
        progress: Callable[[str], None] = print,
        first: int = 0,
    ) -> None:
        self._address, self._seed, self._names = address, seed, names
        self._frames, self._until, self._at_once = frames, seconds, at_once
        self._progress = progress
        self._first = first
        self._ends = 0.0
        self.sent = 0
        """Frames, well-formed or not, and what was sent in the place of one. Those behind one that
        ends its connection are sent again, in another one."""
        self.looked_at = 0
        """Answered, or disconnected for; each once."""
        self.by_kind: Counter[str] = Counter()
        """Connections."""
        self.unconnected = 0
        self.recent: OrderedDict[str, list[bytes]] = OrderedDict()
        """Frames by the address that they came from, as the gateway's log names it."""
        self._corpora: OrderedDict[int, list[Made]] = OrderedDict()
        self._background: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        self.corpus_of(self._first)  # the first takes seconds: kio's classes are loaded for it
        began = time.monotonic()
        self._ends = began + self._until
        number, told = self._first, began
        running: set[asyncio.Task[None]] = set()
        while not self._over:
            while len(running) < self._at_once:
                number += 1
                running.add(asyncio.create_task(self._connection(number)))
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if time.monotonic() - told > 20:
                told = time.monotonic()
                self._progress(f"{told - began:5.0f} s: {self.sent:,} frames, connection {number}")
        await asyncio.gather(*running)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    @property
    def _over(self) -> bool:
        return self.sent >= self._frames or time.monotonic() >= self._ends

    def corpus_of(self, number: int) -> list[Made]:
        """The requests that connection ``number`` draws from."""
        part = number // ROUND
        if part not in self._corpora:
            self._corpora[part] = corpus(Random(f"{self._seed}/{part}"), self._names)
            if len(self._corpora) > 3:
                self._corpora.popitem(last=False)
        return self._corpora[part]

    async def _connection(self, number: int) -> None:
        random = Random(f"{self._seed}/{number}/c")
        kinds = (
            (self._talk, 50), (self._nearly, 34), (self._chopped, 5), (self._noise, 4),
            (self._huge, 3), (self._drop, 2), (self._slow, 1), (self._half, 1), (self._deaf, 1),
        )  # fmt: skip
        kind = random.choices([k for k, _ in kinds], [w for _, w in kinds])[0]
        self.by_kind[kind.__name__.strip("_")] += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, EOFError):
            await kind(random, self.corpus_of(number))

    # -- kinds of connections

    async def _talk(self, random: Random, known: Sequence[Made]) -> None:
        """Whole requests with odd values, fresh ones among them."""
        frames = [random.choice(known).frame for _ in range(120)]
        api, version = random.choice(offered())
        frames[0] = make(random, self._names, api, version).frame
        await self._converse(random, frames)

    async def _nearly(self, random: Random, known: Sequence[Made]) -> None:
        """Requests that were changed, between whole ones."""
        frames = [
            mutated(random, random.choice(known), known)
            if random.random() < 0.25
            else random.choice(known).frame
            for _ in range(80)
        ]
        await self._converse(random, frames)

    async def _chopped(self, random: Random, known: Sequence[Made]) -> None:
        """As TCP may deliver it: in pieces that know nothing of frames."""
        frames = [random.choice(known).frame for _ in range(20)]
        await self._converse(random, frames, pieces=True)

    async def _noise(self, random: Random, known: Sequence[Made]) -> None:
        """No Kafka at all, or only its length."""
        size = random.choice((1, 3, 4, 5, 64, 5_000))
        sent = random.choice((b"", b"\0\0\0\x20", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01"))
        await self._throw(random, sent + random.randbytes(size))

    async def _huge(self, random: Random, known: Sequence[Made]) -> None:
        """A length that no bytes follow, or few; before or behind a good request."""
        whole = random.choice(known).frame
        before = framed(PROBE) if random.random() < 0.5 else b""
        size = random.choice(HUGE)
        head = struct.pack(">i", size) + random.choice((whole, whole[:8], b"", whole * 200))
        await self._throw(random, before + head, keeps=size > 16_384)

    async def _drop(self, random: Random, known: Sequence[Made]) -> None:
        """Connected and left, again and again."""
        for _ in range(20):
            _, writer = await self._connect(random)
            if random.random() < 0.5:
                writer.write(framed(random.choice(known).frame)[: random.choice((0, 2, 9))])
            self._leave(writer, reset=random.random() < 0.5)
            self.sent += 1

    async def _slow(self, random: Random, known: Sequence[Made]) -> None:
        self._behind(self._byte_by_byte(random, framed(random.choice(known).frame)), 60)

    async def _half(self, random: Random, known: Sequence[Made]) -> None:
        whole = framed(random.choice(known).frame)
        self._behind(self._silent(random, whole[: random.randrange(len(whole))]), 200)

    async def _deaf(self, random: Random, known: Sequence[Made]) -> None:
        frames = [m.frame for m in known if m.api in (1, 3, 18, 32, 75)]
        self._behind(self._not_reading(random, frames * 20), 12)

    # -- how they are done

    def _behind(self, work: object, most: int) -> None:
        if len(self._background) >= most:
            work.close()  # type: ignore[attr-defined]
            return

        async def quietly() -> None:
            with contextlib.suppress(OSError, EOFError):
                await work  # type: ignore[misc]

        task = asyncio.create_task(quietly())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _byte_by_byte(self, random: Random, whole: bytes) -> None:
        _, writer = await self._connect(random)
        self.sent += 1
        try:
            for byte in whole:
                if writer.is_closing():
                    break
                writer.write(bytes((byte,)))
                await asyncio.sleep(random.choice((0.01, 0.05, 0.2)))
        finally:
            self._leave(writer)

    async def _silent(self, random: Random, some: bytes) -> None:
        reader, writer = await self._connect(random)
        self.sent += 1
        try:
            writer.write(some)
            await asyncio.wait_for(reader.read(), 40)
        except TimeoutError:
            pass
        finally:
            self._leave(writer)

    async def _not_reading(self, random: Random, frames: Sequence[bytes]) -> None:
        _, writer = await self._connect(random)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        try:
            for n, frame in enumerate(frames):
                if writer.is_closing():
                    break
                writer.write(framed(numbered(frame, n)))
                self.sent += 1
                await asyncio.wait_for(writer.drain(), 5)
        except TimeoutError:
            await asyncio.sleep(35)
        finally:
            self._leave(writer, reset=True)

    async def _throw(self, random: Random, what: bytes, keeps: bool = False) -> None:
        reader, writer = await self._connect(random)
        self.sent += 1
        self.looked_at += 1
        self._remember(writer, [what[4:]])
        try:
            writer.write(what)
            await asyncio.wait_for(reader.read(65_536), 0.05 if keeps else QUIET_S)
        except TimeoutError:
            pass
        finally:
            self._leave(writer, reset=random.random() < 0.3)

    async def _converse(
        self, random: Random, frames: Sequence[bytes], pieces: bool = False
    ) -> None:
        """Every frame is sent, in as many connections as it takes: behind one that ends its
        connection the next one goes on."""
        at = 0
        while at < len(frames) and not self._over:
            reader, writer = await self._connect(random)
            self._remember(writer, frames[at:])
            numbers = range(at, len(frames))
            self.sent += len(numbers)
            whole = b"".join(framed(numbered(frames[n], n)) for n in numbers) + framed(PROBE)
            try:
                if pieces:
                    for start, end in _pieces(random, len(whole)):
                        if writer.is_closing():
                            break
                        writer.write(whole[start:end])
                        await asyncio.sleep(0)
                else:
                    writer.write(whole)
                done = await self._answers(reader, at, len(frames))
            except ConnectionError:
                done = at + 1
            finally:
                self._leave(writer)
            self.looked_at += done - at
            at = done

    async def _answers(self, reader: asyncio.StreamReader, at: int, end: int) -> int:
        """The number of the first frame that was not looked at."""
        done = at
        try:
            while True:
                size = int.from_bytes(
                    await asyncio.wait_for(reader.readexactly(4), QUIET_S), "big", signed=True
                )
                answer = await asyncio.wait_for(reader.readexactly(size), 10)
                correlation = int.from_bytes(answer[:4], "big", signed=True)
                if correlation == LATE:
                    return end
                done = correlation + 1 if done <= correlation < end else min(done + 1, end)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            return min(done + 1, end)

    async def _connect(self, random: Random) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        made = socket.socket()
        made.setblocking(False)
        made.bind((f"127.77.0.{1 + random.randrange(ADDRESSES)}", 0))
        try:
            await asyncio.get_running_loop().sock_connect(made, self._address)
        except OSError:
            self.unconnected += 1
            made.close()
            raise
        return await asyncio.open_connection(sock=made)

    def _leave(self, writer: asyncio.StreamWriter, reset: bool = False) -> None:
        found = writer.get_extra_info("socket")
        if reset and found is not None:
            with contextlib.suppress(OSError):
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.transport.abort()

    def _remember(self, writer: asyncio.StreamWriter, frames: Sequence[bytes]) -> None:
        name = writer.get_extra_info("sockname")
        self.recent["{}:{}".format(*name)] = list(frames)
        if len(self.recent) > REMEMBERED:
            self.recent.popitem(last=False)


def _pieces(random: Random, size: int) -> list[tuple[int, int]]:
    cuts = sorted({0, size, *(random.randrange(size) for _ in range(min(size, 200)))})
    return list(itertools.pairwise(cuts))
