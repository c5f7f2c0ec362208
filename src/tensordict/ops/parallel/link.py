"""How heads and parts cross to another process: through a pipe, or in one block of memory when they are large.

    worker                                          parent
    small:  one message ------------------------->  read
    large:  lengths, then pieces of the memory -->  read into one buffer
    huge:   lengths, and a descriptor ----------->  the same memory, mapped

The block of a huge result has no name, so nothing is left when a process dies.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import numpy as np
import torch

PIECE = 1 << 18  # bytes; a pipe reads several pieces faster than one long message (0.35 against 2 ms per MB)
BLOCK = 1 << 25  # bytes; below, writing to the pipe is faster than the page faults of a new block
HAS_BLOCKS = hasattr(os, "memfd_create") and hasattr(socket, "send_fds")
SMALL, LARGE, HUGE, HELLO, READY = b"s", b"l", b"h", b"w", b"r"
_ALIGN = 64
_NUMBER = struct.Struct("<q")

Message = tuple[bytes, int, memoryview, list[memoryview]]


class Link:
    """One end of a pipe between the parent and a worker."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        # a duplex pipe is a pair of sockets where descriptors can be sent at all
        self._socket = socket.socket(fileno=os.dup(pipe.fileno())) if HAS_BLOCKS else None
        if self._socket is not None:
            self._socket.setblocking(True)  # whatever `socket.setdefaulttimeout` says

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return int(self.pipe.fileno())

    def close(self) -> None:
        """Close this end, so that the other reads the end of file."""
        if self._socket is not None:
            self._socket.close()
        self.pipe.close()

    def say(self, kind: bytes) -> None:
        """Send a message without content."""
        self.pipe.send_bytes(kind + _NUMBER.pack(-1))

    def send(self, number: int, head: memoryview, parts: Sequence[memoryview]) -> None:
        """Send a head and its parts, marked with *number*."""
        if not parts and len(head) <= PIECE:
            self.pipe.send_bytes(SMALL + _NUMBER.pack(number) + head)
            return
        lengths = [part.nbytes for part in (head, *parts)]
        block = None
        if self._socket is not None and sum(lengths) >= BLOCK:
            with contextlib.suppress(OSError):  # no memory or no descriptor for it: the pipe takes it
                block = Block.write([head, *parts])
        self.pipe.send_bytes((HUGE if block else LARGE) + struct.pack(f"<q{len(lengths)}q", number, *lengths))
        if block is not None:
            with contextlib.closing(block):
                socket.send_fds(self._socket, [b"."], [block.descriptor])  # type: ignore[arg-type]
            return
        for part in (head, *parts):
            for start in range(0, part.nbytes, PIECE):
                self.pipe.send_bytes(part[start : start + PIECE])

    def receive(self) -> Message:
        """Receive what `send` or `say` sent: its kind, number, head and parts.

        Raises:
            EOFError: the sender is gone.
        """
        message = self.pipe.recv_bytes()
        kind = message[:1]
        if kind not in (LARGE, HUGE):
            return kind, _NUMBER.unpack_from(message, 1)[0], memoryview(message)[9:], []
        number, *lengths = struct.unpack(f"<{len(message) // 8}q", message[1:])
        if kind == HUGE:
            _, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)  # type: ignore[arg-type]
            if not descriptors:
                raise EOFError
            with contextlib.closing(Block(descriptors[0], lengths)) as block:
                head, *parts = block.parts()
        else:
            head, *parts = cut(memoryview(np.empty(span(lengths), np.uint8)), lengths)  # type: ignore[arg-type]
            for part in (head, *parts):
                filled = 0
                while filled < part.nbytes:
                    filled += self.pipe.recv_bytes_into(part, filled)
        return kind, number, head, parts


def span(lengths: Sequence[int]) -> int:
    """Return the bytes that parts of these lengths take side by side.

    Example:
        >>> span([3, 70])
        192
    """
    return sum(-(-length // _ALIGN) * _ALIGN for length in lengths)


def cut(buffer: memoryview, lengths: Sequence[int]) -> list[memoryview]:
    """Return the parts of these lengths that lie side by side in a buffer."""
    starts = _starts(lengths)
    return [buffer[start : start + length] for start, length in zip(starts, lengths)]


def _starts(lengths: Sequence[int]) -> Iterator[int]:
    return (span(lengths[:place]) for place in range(len(lengths)))


class Block:
    """Memory without a name that holds parts side by side, known by its descriptor."""

    def __init__(self, descriptor: int, lengths: Sequence[int]) -> None:
        self.descriptor, self.lengths = descriptor, list(lengths)

    @classmethod
    def write(cls, parts: Sequence[memoryview]) -> Block:
        """Copy *parts* into a new block."""
        block = cls(os.memfd_create("tensordict", os.MFD_CLOEXEC), [part.nbytes for part in parts])
        try:
            os.ftruncate(block.descriptor, max(1, span(block.lengths)))
            for start, part in zip(_starts(block.lengths), parts):
                done = 0
                while done < part.nbytes:
                    done += os.pwrite(block.descriptor, part[done:], start + done)
        except BaseException:
            block.close()
            raise
        return block

    def parts(self) -> list[memoryview]:
        """Map the block and return its parts; what is written to them is seen in this process only."""
        # Python's own mmap would keep a descriptor open for as long as the memory is used
        name, size = f"/proc/self/fd/{self.descriptor}", max(1, span(self.lengths))
        memory: Any = torch.from_file(name, shared=False, size=size, dtype=torch.uint8).numpy()
        return cut(memoryview(memory), self.lengths)

    def close(self) -> None:
        """Close the descriptor; the memory goes with the last mapping."""
        os.close(self.descriptor)


class Place(NamedTuple):
    """Where a process of this user finds what a descriptor of another one stands for."""

    owner: int
    descriptor: int
    inode: int

    @classmethod
    def of(cls, descriptor: int) -> Place:
        """Return the place of a descriptor of this process."""
        return cls(os.getpid(), descriptor, os.fstat(descriptor).st_ino)

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """Open it here for the block.

        Raises:
            FileNotFoundError: the other process has closed it, or ended.
        """
        descriptor = os.open(f"/proc/{self.owner}/fd/{self.descriptor}", os.O_RDWR)
        try:
            if os.fstat(descriptor).st_ino != self.inode:  # the number stands for something else by now
                raise FileNotFoundError(f"process {self.owner} has closed descriptor {self.descriptor}")
            yield descriptor
        finally:
            os.close(descriptor)


class Watch:
    """Waits for the first of many pipes and processes; one that stays costs nothing to wait for again."""

    def __init__(self) -> None:
        self._tags: dict[Any, Any] = {}
        self._poll = select.poll() if hasattr(select, "poll") else None

    def add(self, source: Any, tag: Any) -> None:
        """Watch *source*, a descriptor or what has one; *tag* is what `ready` returns for it."""
        self._tags[self._key(source)] = tag
        if self._poll is not None:
            self._poll.register(source, select.POLLIN)

    def remove(self, source: Any) -> None:
        """Watch *source* no more; it must still be open."""
        if self._tags.pop(self._key(source), None) is not None and self._poll is not None:
            self._poll.unregister(source)

    def ready(self, timeout: float) -> list[Any]:
        """Return the tags of what can be read within *timeout* seconds."""
        if self._poll is None:
            return [self._tags[source] for source in wait(list(self._tags), timeout)]
        return [self._tags[source] for source, _ in self._poll.poll(timeout * 1000)]

    def _key(self, source: Any) -> Any:
        if self._poll is None:
            return source
        return source if isinstance(source, int) else source.fileno()
