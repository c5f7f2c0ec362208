"""Checksums of a saved tree: one file, `checksums.json`, in its folder.

    {"algorithm": "crc32", "files": {"x.memmap": [12, "5ba0b9b1"], "n/meta.json": [171, "0e3f4c11"]}}

A file of a leaf that has no sum is one that may be written still, such as a preallocated one: it gets its sum when it
is flushed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tensordict.storage import disk, survey
from tensordict.storage.layout import META, SUMS, said
from tensordict.storage.memmap import replace_file
from tensordict.storage.survey import Part

ALGORITHM = "crc32"

_CHUNK = 1 << 20
_HEX = re.compile("[0-9a-f]{8}")

Sum = tuple[int, int]
"""The size of a file in bytes and the CRC-32 of its content, as `zlib.crc32` gives it."""


class ChecksumError(ValueError):
    """A saved file does not hold what was saved, or what was saved cannot be told."""


def sum_of(path: str) -> Sum:
    """Return the size and the CRC-32 of a file; a file that is not there counts as an empty one.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"123456789"), file.flush()
    ...     size, crc = sum_of(file.name)
    >>> size, f"{crc:08x}"
    (9, 'cbf43926')
    """
    size, crc, room = 0, 0, memoryview(bytearray(_CHUNK))
    try:
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(room):
                size, crc = size + count, zlib.crc32(room[:count], crc)
    except FileNotFoundError:
        pass
    return size, crc


def record(folder: str, *, known: Mapping[str, Sum] | None = None, skip: Container[str] = ()) -> None:
    """Write the checksums of a tree, in one step; arguments as for `text_of`."""
    path = os.path.join(folder, SUMS)
    text = text_of(folder, known=known, skip=skip)
    with replace_file(path) as (descriptor, _):
        disk.write(descriptor, text, path)


def text_of(folder: str, *, known: Mapping[str, Sum] | None = None, skip: Container[str] = ()) -> bytes:
    """Return what `checksums.json` should hold for a tree.

    Args:
        folder: the folder of the tree.
        known: sums that were computed while writing, by the path of a file within the tree; other files are read.
        skip: files that get no sum yet, because they are there to be written.
    """
    known = known or {}
    files = [part.file for part in survey.parts(folder) if part.file not in skip]
    unread = [file for file in files if file not in known]
    sums = {**dict(zip(unread, _sums(folder, unread))), **known}
    return _dump({file: sums[file] for file in files})


def renew(folder: str, paths: Iterable[str]) -> None:
    """Read some files of a tree again and note their checksums, and those of records that have none."""
    within = {os.path.relpath(os.path.realpath(path), folder) for path in paths}
    known: Mapping[str, Sum] = {}
    with contextlib.suppress(FileNotFoundError, ChecksumError):
        known = {file: found for file, found in read(folder).items() if file not in within}
    records = {node.path(META) for node in survey.nodes(folder)}
    unread = {part.file for part in survey.parts(folder)} - within - known.keys() - records
    record(folder, known=known, skip=unread)


def forget(folder: str, names: Iterable[str]) -> None:
    """Take the sums of files, and of those in folders, out of those of a tree before they change, if there are any."""
    try:
        sums = read(folder)
    except (FileNotFoundError, ChecksumError):
        return
    gone = {*names}
    below = tuple(f"{name}/" for name in gone)
    kept = {file: found for file, found in sums.items() if file not in gone and not file.startswith(below)}
    if len(kept) < len(sums):
        path = os.path.join(folder, SUMS)
        with replace_file(path) as (descriptor, _):
            disk.write(descriptor, _dump(kept), path)


def read(folder: str) -> dict[str, Sum]:
    """Return the checksums of a tree.

    Raises:
        FileNotFoundError: there are none.
        ChecksumError: they are malformed.
    """
    path = os.path.join(folder, SUMS)
    with open(path, "rb") as file:
        text = file.read()
    try:
        raw = json.loads(text)
        if raw["algorithm"] != ALGORITHM:
            raise ChecksumError(f"{path!r}: unknown algorithm {raw['algorithm']!r}, expected {ALGORITHM!r}")
        return {file: (_size(size), int(_hex(crc), 16)) for file, (size, crc) in raw["files"].items()}
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ChecksumError(f"{path!r} is malformed: {error!r}") from error
    except ValueError as error:
        raise error if isinstance(error, ChecksumError) else ChecksumError(f"{path!r} is malformed: {error}") from error


def _size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a size in bytes, got {value!r}")
    return value


def _hex(value: Any) -> str:
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise ValueError(f"expected a CRC-32 of eight hexadecimal digits, got {value!r}")
    return value


def _dump(sums: Mapping[str, Sum]) -> bytes:
    files = {file: [size, f"{crc:08x}"] for file, (size, crc) in sums.items()}
    return json.dumps({"algorithm": ALGORITHM, "files": files}).encode()


def _sums(folder: str, files: Sequence[str]) -> Iterator[Sum]:
    """Return the sums of files, which are read in threads: zlib computes without the lock of Python."""
    yield from disk.spread(lambda file: sum_of(os.path.join(folder, file)), files, min(4, os.cpu_count() or 1))


# --- checking


class Report(NamedTuple):
    """What was found: one line for each damage, how many files have the right sum, and those that have none."""

    damage: list[str]
    right: int
    unknown: list[Part]


def survey_of(folder: str, progress: Callable[[Part], object] = bool) -> Report:
    """Compare every file of a tree with its record and its checksum, and return what was found.

    Raises:
        FileNotFoundError: there is no tree.
        ValueError, RuntimeError: a record cannot be read.
    """
    sums: dict[str, Sum] = {}
    damage: list[str] = []
    try:
        sums = read(folder)
    except FileNotFoundError:
        pass
    except ChecksumError as error:
        damage.append(str(error))
    damage += [_extra(folder, part) for part in survey.surplus(folder)]
    parts = list(survey.parts(folder))
    gone = sums.keys() - {part.file for part in parts}
    damage += [f"{os.path.join(folder, file)!r} has a checksum, but no record names it" for file in sorted(gone)]
    unknown, right = [], 0
    for part, found in zip(parts, _sums(folder, [part.file for part in parts])):
        progress(part)
        wrong = _compared(folder, part, found, sums.get(part.file))
        damage += wrong
        if not wrong and part.file in sums:
            right += 1
        elif not wrong:
            unknown.append(part)
    return Report(damage, right, unknown)


def _extra(folder: str, part: Part) -> str:
    path = os.path.join(folder, part.file)
    return f"{said(part.key)}{path!r} of {os.path.getsize(path)} bytes belongs to no key; remove it, or save again"


def _compared(folder: str, part: Part, found: Sum, expected: Sum | None) -> list[str]:
    path, (size, crc) = os.path.join(folder, part.file), found
    where = f"{said(part.key)}{path!r}"
    if not os.path.exists(path) and (part.nbytes or (expected and expected[0])):
        return [f"{where} is missing; expected a file of {part.nbytes or expected[0]} bytes"]  # type: ignore[index]
    if part.nbytes is not None and size != part.nbytes:
        return [f"{where} should hold {part.nbytes} bytes, but it holds {size}"]
    if expected is not None and found != expected:
        return [
            f"{where} has the CRC-32 {crc:08x} over {size} bytes, expected {expected[1]:08x} over {expected[0]}: it is "
            f"damaged, or was written through a mapping and not flushed"
        ]
    return []


def check(folder: str) -> None:
    """Raise unless every file of a tree holds what was saved; files that are there to be written have no sum yet.

    Raises:
        ChecksumError: a file does not; the message names the key, the file, and what was expected. Or there are none.
    """
    report = survey_of(folder)
    if report.damage:
        more = f" (and {len(report.damage) - 1} more)" if len(report.damage) > 1 else ""
        raise ChecksumError(report.damage[0] + more)
    if not os.path.exists(os.path.join(folder, SUMS)):
        raise ChecksumError(f"{folder!r} has no {SUMS}, so it cannot be verified; save it again, or flush() it")
