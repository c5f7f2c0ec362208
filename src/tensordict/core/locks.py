"""Locks: a locked node refuses to change its keys; its values can change in place.

Locking spreads to all nodes below. A node below knows who locked it through weak references, so that it cannot be
unlocked while a locked parent lives, and is free again when that parent is gone. Reads never look at a lock.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from tensordict import errors

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class Lockable:
    """Requires: `_nodes()`, the nodes directly below. Gives: lock words and `_gate`."""

    _locked: bool = False
    _lockers: tuple[weakref.ref[Lockable], ...] = ()
    _undo: str | None = None

    if TYPE_CHECKING:

        def _nodes(self) -> list[Lockable]: ...

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
            self._undo = "unlock_"
        return self

    def _spread_lock(self, lockers: tuple[weakref.ref[Lockable], ...]) -> None:
        self._locked = True
        # by identity: two weak references are equal when what they refer to is, and nodes compare by value
        self._lockers += tuple(ref for ref in lockers if all(ref is not known for known in self._lockers))
        mine = (weakref.ref(self),)
        for node in self._nodes():
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
            self._undo = "lock_"
        return self

    def _live_lockers(self) -> tuple[weakref.ref[Lockable], ...]:
        found = [(ref, ref()) for ref in self._lockers]
        return tuple(ref for ref, node in found if node is not None and node._locked)

    def _lift_lock(self, parent: Lockable | None) -> None:
        self._lockers = tuple(ref for ref in self._live_lockers() if ref() is not parent)
        if not self._lockers:
            self._locked = False
            for node in self._nodes():
                node._lift_lock(self)

    def _gate(self, what: str, *about: Any) -> None:
        """Raise unless the keys may change."""
        if self._locked:
            raise errors.locked(what.format(*about), type(self).__name__)

    def __enter__(self) -> Self:
        if self._undo is None:
            raise TypeError(f"a {type(self).__name__} is a context manager only right after lock_() or unlock_()")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            getattr(self, undo)()
            self._undo = None
