"""Locks and contexts: a locked node refuses to change its keys; its values can change in place.

Locking spreads to all nodes below. A node below knows who locked it through weak references, so that it cannot be
unlocked while a locked parent lives, and is free again when that parent is gone. Reads never look at a lock.

`with` undoes the word right before it: it locks or unlocks again, and it writes what changed in a node that a word made
(a view, flattened keys) back to the one that it was made from.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from tensordict import errors

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

L = TypeVar("L", bound="Lockable")

_ref = weakref.ref

Undo = tuple[Any, str, tuple[Any, ...]]
"""How a context ends: a weak reference to the node that gets the changes (None: this one), a word, its arguments."""


def leads_back(made: L, source: Lockable, word: str, *args: Any) -> L:
    """Remember the word that leads from a node back to the one that it was made from, if that is another.

    The reference is weak: a node that is reshaped again and again would keep all that it was made from otherwise.
    """
    if made is source:
        return _ends_with(made, "_stay")
    made._undo = (_ref(source), word, args)
    return made


def _ends_with(node: L, word: str) -> L:
    """Remember the word that ends a context of a node; one that leads back to another keeps doing so."""
    if node._undo is None or node._undo[0] is None:
        node._undo = (None, word, ())
    return node


class Lockable:
    """Requires: `_nodes()`, the nodes directly below. Gives: lock words, `_gate` and contexts."""

    _locked: bool = False
    _lockers: tuple[weakref.ref[Lockable], ...] = ()
    _undo: Undo | None = None
    _entered: tuple[tuple[Undo, Any], ...] = ()

    if TYPE_CHECKING:

        def _nodes(self) -> list[Lockable]: ...
        def _marks(self) -> dict[Any, Any]: ...
        def _changed(self, marks: dict[Any, Any]) -> Any: ...

    @property
    def is_locked(self) -> bool:
        """Tell whether the keys are locked; set it to lock or unlock.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"a": 1}, lock=True).is_locked
            True
        """
        return self._locked

    @is_locked.setter
    def is_locked(self, value: bool) -> None:
        _ = self.lock_() if value else self.unlock_()

    def lock_(self) -> Self:
        """Refuse changes of the keys from now on, here and in all nested tensordicts; return self.

        As a context, the lock is undone at the end.

        Examples:
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"a": 1}).lock_()
            >>> td["b"] = 2
            Traceback (most recent call last):
            ...
            RuntimeError: cannot set key 'b': this TensorDict is locked, ...
        """
        if not self._locked:
            self._spread_lock(())
            return _ends_with(self, "unlock_")
        return _ends_with(self, "_stay")

    def _spread_lock(self, lockers: tuple[weakref.ref[Lockable], ...]) -> None:
        self._locked = True
        # by identity: two weak references are equal when what they refer to is, and nodes compare by value
        known = self._lockers
        self._lockers = (
            known + tuple([ref for ref in lockers if all([ref is not one for one in known])]) if known else lockers
        )
        nodes = self._nodes()
        mine = (_ref(self),) if nodes else ()
        for node in nodes:
            node._spread_lock(mine)

    def unlock_(self) -> Self:
        """Allow changes of the keys again, here and in all nested tensordicts; return self.

        As a context, the lock comes back at the end.

        Raises:
            RuntimeError: if a locked parent holds this tensordict; unlock the parent.

        Examples:
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"a": 1}, lock=True)
            >>> with td.unlock_():
            ...     td["b"] = 2
            >>> td.is_locked
            True
        """
        if self._locked:
            if self._live_lockers():
                raise RuntimeError(
                    f"cannot unlock this {type(self).__name__}: a locked parent holds it. Unlock the parent instead."
                )
            self._lift_lock(None)
            return _ends_with(self, "lock_")
        return _ends_with(self, "_stay")

    def _live_lockers(self, parent: Lockable | None = None) -> tuple[weakref.ref[Lockable], ...]:
        """Return the locked nodes that hold me, without one of them."""
        lockers = []
        for ref in self._lockers:
            node = ref()
            if node is not None and node is not parent and node._locked:
                lockers.append(ref)
        return tuple(lockers)

    def _lift_lock(self, parent: Lockable | None) -> None:
        self._lockers = self._live_lockers(parent)
        if not self._lockers:
            self._locked = False
            for node in self._nodes():
                node._lift_lock(self)

    def _gate(self, what: str, *about: Any) -> None:
        """Raise unless the keys may change."""
        if self._locked:
            raise errors.locked(what.format(*about), type(self).__name__)

    def _stay(self) -> None:
        """Do nothing: the end of a context that changed nothing at its start."""

    def __enter__(self) -> Self:
        undo, self._undo = self._undo, None
        if undo is None:
            raise TypeError(
                f"a {type(self).__name__} is a context manager only right after lock_(), unlock_(), or a word whose "
                f"changes can be written back, such as view() or flatten_keys()"
            )
        if undo[0] is not None and undo[0]() is None:
            raise RuntimeError(
                f"changes of this {type(self).__name__} cannot be written back: what it was made from is gone. "
                f"Give that a name, and use one word at a time."
            )
        self._entered = (*self._entered, (undo, self._marks() if undo[0] is not None else None))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        *outer, ((source, word, args), marks) = self._entered
        self._entered = tuple(outer)
        if source is None:
            getattr(self, word)(*args)
            self._undo = None
        elif error is None:
            changed = self._changed(marks)
            if changed is not None:
                source().update(getattr(changed, word)(*args))


class filling:
    """Let a word set the keys of a node that it has just made, also where a class refuses that to users."""

    def __init__(self, node: Any) -> None:
        self._nodes = list(_refusing(node))

    def __enter__(self) -> None:
        for node in self._nodes:
            node.__dict__["_filling"] = True

    def __exit__(self, *error: object) -> None:
        for node in self._nodes:
            node.__dict__.pop("_filling", None)


def _refusing(node: Any) -> Iterator[Any]:
    """Yield a node and those below it that are of frozen classes."""
    shown = getattr(node, "_shows", None)
    if shown is not None and shown._options.frozen:
        yield node
    for child in node._nodes():
        yield from _refusing(child)
