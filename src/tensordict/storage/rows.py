"""How many rows a tree has that others append to: one number, in the record at its top, says it for all nodes.

    "_tensordict_rows": [100, 120]    there are 100 rows, and files may hold up to 120, for somebody is appending

Nodes below get their records anew only after that number was changed, and files grow before it is. So whoever
opens the tree reads the number first, and takes that many rows of whatever the nodes below say.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import replace
from typing import NamedTuple

from tensordict.storage.base import Record
from tensordict.storage.layout import Entry

OFFSETS, BYTES, VALID = "offsets", "bytes", "valid"


class Rows(NamedTuple):
    """How many rows there are, and how many files may hold."""

    number: int
    limit: int

    @property
    def growing(self) -> bool:
        return self.limit > self.number


def cut(folder: str, record: Record, entries: dict[str, Entry], count: int) -> tuple[Record, dict[str, Entry]]:
    """Return the record and the entries of a node as they are with a number of rows."""
    kind = record.kind
    if kind == "lazy" and record.stack_dim == 0:
        return record, {str(member): Entry(str(member)) for member in range(count)}
    if kind == "non-tensor-stack":
        record = replace(record, data=record.data[:count])
    if not record.batch:
        return record, entries
    record = replace(record, batch=(count, *record.batch[1:]))
    if kind == "strings":
        return record, _cut_strings(folder, entries, math.prod(record.batch or ()))
    if kind == "dense":
        return record, {key: _resized(entry, count) for key, entry in entries.items()}
    return record, entries


def _resized(entry: Entry, count: int) -> Entry:
    if entry.dtype is not None:
        return entry._replace(shape=(count, *entry.shape[1:]))
    return entry._replace(batch=(count, *entry.batch[1:])) if entry.batch else entry


def _cut_strings(folder: str, entries: dict[str, Entry], count: int) -> dict[str, Entry]:
    end = end_of_strings(os.path.join(folder, entries[OFFSETS].file), count)
    sizes = {BYTES: end, OFFSETS: count + 1, VALID: -(-count // 8)}
    return {key: entry._replace(shape=(sizes[key],)) if key in sizes else entry for key, entry in entries.items()}


def end_of_strings(path: str, count: int) -> int:
    """Return where the bytes of some number of strings end."""
    with open(path, "rb") as file:
        file.seek(8 * count)
        found = file.read(8)
    if len(found) < 8:
        raise ValueError(f"{path!r} should hold {8 * (count + 1)} bytes, but it holds {os.path.getsize(path)}")
    return int.from_bytes(found, sys.byteorder, signed=True)


def of_children(record: Record, rows: Rows) -> Rows | None:
    """Return the rows of the nodes below one: members of a stack of rows have none of their own."""
    return None if record.kind == "lazy" and record.stack_dim == 0 else rows
