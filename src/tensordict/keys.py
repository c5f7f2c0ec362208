"""Nested keys: a string, or a tuple of strings that is the path to a child."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tensordict.aliases import NestedKey


def unravel_key(key: NestedKey) -> str | tuple[str, ...]:
    """Return a nested key in its plain form: a string, or a flat tuple of at least two strings.

    Args:
        key: a string, or a tuple of keys, nested as deep as you like.

    Raises:
        KeyError: if the key is not a string or a non-empty tuple of keys.

    Examples:
        >>> from tensordict import unravel_key
        >>> unravel_key(("a", ("b", ("c",))))
        ('a', 'b', 'c')
        >>> unravel_key(("a",))
        'a'
    """
    if type(key) is str:
        return key
    path = unravel_key_to_tuple(key)
    return path[0] if len(path) == 1 else path


def unravel_key_to_tuple(key: NestedKey) -> tuple[str, ...]:
    """Return a nested key as a flat tuple of strings.

    Args:
        key: a string, or a tuple of keys.

    Raises:
        KeyError: if the key is not a string or a non-empty tuple of keys.

    Examples:
        >>> from tensordict import unravel_key_to_tuple
        >>> unravel_key_to_tuple("a")
        ('a',)
        >>> unravel_key_to_tuple((("a", "b"), "c"))
        ('a', 'b', 'c')
    """
    if type(key) is tuple and key and all([type(part) is str for part in key]):
        return key  # type: ignore[return-value]
    if isinstance(key, str):
        return (str(key),)
    if isinstance(key, tuple) and key:
        return tuple(part for item in key for part in unravel_key_to_tuple(item))
    raise KeyError(f"a key must be a string or a non-empty tuple of strings, got {key!r} of type {type(key).__name__}")


def unravel_key_list(keys: Iterable[NestedKey]) -> list[str | tuple[str, ...]]:
    """Return each of several nested keys in its plain form.

    Args:
        keys: an iterable of nested keys (not one string).

    Raises:
        TypeError: if ``keys`` is a string.
        KeyError: if one of the keys is not a string or a non-empty tuple of keys.

    Examples:
        >>> from tensordict import unravel_key_list
        >>> unravel_key_list(["a", ("b", ("c",))])
        ['a', ('b', 'c')]
    """
    if isinstance(keys, str):
        raise TypeError(f"expected a list of keys, got the string {keys!r}; write [{keys!r}] for one key")
    return [unravel_key(key) for key in keys]


def as_path(index: tuple[Any, ...]) -> tuple[str, ...]:
    """Return a tuple as a path, or an empty one if it is an index, not a nested key."""
    for part in index:
        if type(part) is not str:
            return unravel_key_to_tuple(index) if is_nested_key(index) else ()
    return index


def is_nested_key(key: Any) -> bool:
    """Tell whether a value reads as a nested key: a string or a non-empty tuple of such."""
    if type(key) is not tuple:
        return isinstance(key, str)
    for part in key:
        if type(part) is not str and not is_nested_key(part):
            return False
    return bool(key)
