"""A column of strings in two tensors, as Arrow lays out large strings: all bytes, and where each string begins.

    ["ab", None, "é"]  <-->  bytes  a b C3 A9     offsets  0 2 2 4     valid  0b101 (only when there is a None)

A million strings are two tensors, not a million objects, so they are copied, shared, mapped and pickled as tensors are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from tensordict.storage.sent import Packed

Array = Any  # a numpy array; its own type knows no memoryview

PARTS = ("bytes", "offsets", "valid")
"""The names of the tensors; `valid` has one bit a string, the lowest of a byte first, and is there only for None."""

_AT_ONCE = 1 << 16  # strings whose bytes are gathered by one index, which takes eight times the memory of the bytes


class Strings:
    """Hold strings, or None, in tensors that never change.

    >>> words = Strings.of(["a", None, "é"])
    >>> words.take(torch.tensor([2, 1])), words.tensors()["offsets"]
    (['é', None], tensor([0, 1, 1, 3]))

    Args:
        data: the UTF-8 bytes of all strings, uint8.
        offsets: where each string begins, and where the last one ends: one more int64 than strings.
        valid: a bit for each string, in uint8: 0 for None.
        where: what errors call this column, such as the folder that it lies in.

    Raises:
        ValueError: the tensors do not belong together.
    """

    __slots__ = ("data", "offsets", "valid", "where")

    def __init__(self, data: Tensor, offsets: Tensor, valid: Tensor | None = None, *, where: str = "memory") -> None:
        self.data, self.offsets, self.valid, self.where = data, offsets, valid, where
        types = data.dtype, offsets.dtype, torch.uint8 if valid is None else valid.dtype
        if types != (torch.uint8, torch.int64, torch.uint8) or data.ndim != 1 or offsets.ndim != 1 or not len(offsets):
            raise self._wrong("expected 1-d uint8 bytes and int64 offsets")
        first, last = int(offsets[0]), int(offsets[-1])
        if (first, last) != (0, len(data)):
            raise self._wrong(f"the offsets go from {first} to {last}, but there are {len(data)} bytes")
        if valid is not None and tuple(valid.shape) != (-(-len(self) // 8),):
            raise self._wrong(f"{len(self)} bits take {-(-len(self) // 8)} bytes, got shape {list(valid.shape)}")

    def _wrong(self, what: str) -> ValueError:
        return ValueError(f"the strings in {self.where!r} are damaged: {what}")

    @classmethod
    def of(cls, values: Sequence[Any]) -> Strings | None:
        """Return a list of strings (and None) in tensors, or None when anything else is among them."""
        kinds = set(map(type, values))
        if str not in kinds or not kinds <= {str, type(None)}:
            return None
        valid = None
        if len(kinds) > 1:
            known = numpy.fromiter((value is not None for value in values), numpy.bool_, len(values))
            valid = torch.from_numpy(numpy.packbits(known, bitorder="little"))
            values = [value or "" for value in values]
        try:
            data = numpy.frombuffer("\0".join(values).encode(), numpy.uint8)
        except UnicodeEncodeError:  # half of a surrogate pair is a string, but no UTF-8
            return None
        cuts = numpy.flatnonzero(data == 0)
        if len(cuts) < len(values):  # the zeros stand between strings, and tell their sizes faster than Python does
            data, sizes = data[data != 0], numpy.diff(cuts, prepend=-1, append=len(data)) - 1
        else:
            data = numpy.frombuffer(bytearray("".join(values).encode()), numpy.uint8)
            sizes = numpy.fromiter((len(value.encode()) for value in values), numpy.int64, len(values))
        return cls(torch.from_numpy(data), _ends(sizes), valid)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __reduce__(self) -> Any:
        return opened, (Packed(self.tensors()), self.where)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        found = zip(PARTS, (self.data, self.offsets, self.valid))
        return {name: tensor for name, tensor in found if tensor is not None}

    def moved(self, data: Tensor, offsets: Tensor, valid: Tensor | None = None) -> Strings:
        """Return this column over other tensors, which hold the same, or will when threads have filled them."""
        column = object.__new__(Strings)
        column.data, column.offsets, column.valid, column.where = data, offsets, valid, self.where
        return column

    def take(self, rows: Tensor | None = None) -> list[str | None]:
        """Return the strings of some rows (of all by default); only their bytes are touched.

        Raises:
            IndexError: there is no such row.
            ValueError: the bytes of a row are not within the column, or not UTF-8.
        """
        found: list[str | None] = []
        for data, ends in self._pieces(rows):
            stops = ends.tolist()
            try:
                text = data.tobytes().decode()
                if len(text) == len(data):
                    found += [text[start:stop] for start, stop in zip([0, *stops], stops)]
                else:
                    raw = memoryview(data)
                    found += [str(raw[start:stop], "utf-8") for start, stop in zip([0, *stops], stops)]
            except UnicodeDecodeError as error:
                raise self._wrong(str(error)) from None
        known = self._known(rows)
        return found if known is None else [text if have else None for text, have in zip(found, known.tolist())]

    def pick(self, rows: Tensor) -> Strings:
        """Return some rows as a column of their own."""
        data = [numpy.zeros(0, numpy.uint8)]
        sizes = [numpy.zeros(0, numpy.int64)]
        for piece, ends in self._pieces(rows):
            data.append(piece)
            sizes.append(numpy.diff(ends, prepend=0))
        known = self._known(rows)
        valid = None if known is None else torch.from_numpy(numpy.packbits(known, bitorder="little"))
        return Strings(torch.from_numpy(numpy.concatenate(data)), _ends(numpy.concatenate(sizes)), valid)

    @staticmethod
    def join(columns: Sequence[Strings]) -> Strings:
        """Return the strings of several columns as one."""
        shifts = [0]
        for column in columns:
            shifts.append(shifts[-1] + len(column.data))
        offsets = [column.offsets[1:] + shift for column, shift in zip(columns, shifts)]
        valid = None
        if any(column.valid is not None for column in columns):
            known: list[Array] = [one._known(None) for one in columns]
            known = [numpy.ones(len(one), bool) if bits is None else bits for one, bits in zip(columns, known)]
            valid = torch.from_numpy(numpy.packbits(numpy.concatenate(known), bitorder="little"))
        data = torch.cat([column.data for column in columns])
        return Strings(data, torch.cat([torch.zeros(1, dtype=torch.int64), *offsets]), valid)

    def _pieces(self, rows: Tensor | None) -> Iterator[tuple[Array, Array]]:
        """Yield the bytes of some rows side by side, and where each ends, piece by piece."""
        offsets, data = self.offsets.numpy(), self.data.numpy()
        count = len(self) if rows is None else len(rows)
        for first in range(0, count, _AT_ONCE):
            some = slice(first, first + _AT_ONCE)
            if rows is None:
                starts, stops = offsets[:-1][some], offsets[1:][some]
            else:
                at = rows[some].numpy()
                starts, stops = offsets[at], offsets[at + 1]
            sizes = stops - starts
            if starts.min() < 0 or sizes.min() < 0 or stops.max() > len(data):
                raise self._wrong("the offsets of some rows are out of order, or beyond the bytes")
            ends = sizes.cumsum()
            if rows is None:
                yield data[starts[0] : stops[-1]], ends
            else:
                places = numpy.repeat(starts - ends + sizes, sizes)
                places += numpy.arange(len(places))
                yield data[places], ends

    def _known(self, rows: Tensor | None) -> Array | None:
        """Return for some rows whether they are strings, or None if all are."""
        if self.valid is None:
            return None
        bits = self.valid.numpy()
        if rows is None:
            return numpy.unpackbits(bits, count=len(self), bitorder="little").view(numpy.bool_)
        at = rows.numpy()
        known: Array = (bits[at >> 3] >> (at & 7).astype(numpy.uint8)) & 1
        return known.view(numpy.bool_)


def opened(parts: dict[str, Tensor], where: str) -> Strings:
    """Return a pickled column."""
    return Strings(*parts.values(), where=where)


def _ends(sizes: Array) -> Tensor:
    offsets = numpy.zeros(len(sizes) + 1, numpy.int64)
    numpy.cumsum(sizes, out=offsets[1:])
    return torch.from_numpy(offsets)
