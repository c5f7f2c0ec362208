"""The sentences of errors that several floors raise.

Inner code raises the short fact; these functions add what a user needs to act on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class ShapeMismatch(RuntimeError):
    """Say that children which must agree in shape do not; a caller may then stack lazily."""


class KeysMismatch(KeyError):
    """Say that nodes which must have the same keys do not; a caller may then stack lazily."""

    def __str__(self) -> str:
        return str(self.args[0])


class MissingKey(KeyError):
    """Say which key was asked for and which there are, without the quotes that KeyError adds."""

    def __str__(self) -> str:
        return str(self.args[0])


class UnknownField(AttributeError, KeyError):
    """Say that a class has no such field, whether it was asked for as an attribute or as a key."""

    def __str__(self) -> str:
        return str(self.args[0])


def missing_key(key: Any, keys: Iterable[Any], owner: str) -> MissingKey:
    return MissingKey(f"key {key!r} not found in {owner} with keys {sorted(map(str, keys))}")


def locked(what: str, owner: str) -> RuntimeError:
    return RuntimeError(
        f"cannot {what}: this {owner} is locked, so its keys cannot change. Values can be changed in place "
        f"(`set_`, `update_`, `td[index] = ...`), or call `unlock_()` first."
    )


def batch_mismatch(key: Any, batch: tuple[int, ...], shape: tuple[int, ...]) -> RuntimeError:
    hint = " To store one number for all rows, expand it to the batch size first." if not shape and batch else ""
    return RuntimeError(
        f"batch dimension mismatch at key {key!r}: the leading dims of a value must be the batch size "
        f"{list(batch)}, got a value of shape {list(shape)}.{hint}"
    )
