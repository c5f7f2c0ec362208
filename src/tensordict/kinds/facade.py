"""A facade wraps a node and forwards every verb to it; results come back in the same wrapping."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from tensordict.aliases import Batch, Call
from tensordict.indexing import Plan
from tensordict.kinds.collection import TensorCollection
from tensordict.meta import Meta

if TYPE_CHECKING:
    from typing_extensions import Self


class Facade(TensorCollection):
    """Requires: `_inner`, and `_wrap(node)`. Gives: the verbs."""

    _is_typed = True
    _inner: Any = None

    if TYPE_CHECKING:

        def _wrap(self, node: Any) -> Self: ...
        @classmethod
        def _unwrapped(cls, items: Sequence[Any]) -> list[Any]: ...

    @property
    def _meta(self) -> Meta:  # type: ignore[override]
        meta: Meta = self._inner._meta
        return meta

    @property
    def _home(self) -> Any:
        return self._inner._home

    @property
    def _moves(self) -> bool:  # type: ignore[override]
        return bool(self._inner._moves)

    @property
    def _locked(self) -> bool:  # type: ignore[override]
        return bool(self._inner._locked)

    # ---- verbs; those that only hand on are in the tables below, but for the hot ones

    def _get(self, key: str) -> Any:
        return self._inner._get(key)

    def _keys(self) -> Collection[str]:
        keys: Collection[str] = self._inner._keys()
        return keys

    def _index(self, plan: Plan) -> Self:
        return self._wrap(self._inner._index(plan))

    def _map(self, call: Call, many: Call | None = None) -> Self:
        return self._wrap(self._inner._map(call, many))

    def _zip(self, call: Call, others: tuple[Any, ...], many: Call | None = None) -> Self:
        return self._wrap(self._inner._zip(call, tuple(map(_open, others)), many))

    def _each(self, call: Call, others: tuple[Any, ...] = (), many: Call | None = None) -> Self:
        self._inner._each(call, tuple(map(_open, others)), many)
        return self

    def _each_at_once(self, many: Call, others: tuple[Any, ...]) -> bool:
        return bool(self._inner._each_at_once(many, tuple(map(_open, others))))

    def _match(self, trial: Any, others: tuple[Any, ...] = ()) -> None:
        self._inner._match(trial, tuple(map(_open, others)))

    def _split(self, call: Call, batches: Sequence[Batch], dim: int) -> tuple[Self, ...]:
        return tuple(map(self._wrap, self._inner._split(call, batches, dim)))

    def _write(self, plan: Plan, value: Any) -> None:
        self._inner._write(plan, _open(value))

    def _admit(self, plan: Plan, value: Any) -> None:
        self._inner._admit(plan, _open(value))

    def _written(self, items: tuple[Any, ...], value: Any) -> Any:
        self._inner._written(items, _open(value))
        return self

    def _stamp(self, meta: Meta) -> Self:
        self._inner._stamp(meta)
        return self

    def _rekey(self, made: Any) -> None:
        self._inner._rekey(made._inner)

    def _take(self, made: Any) -> None:
        self._inner._take(made._inner)

    def _adopt(self, placed: Any) -> None:
        self._inner._adopt(placed._inner)

    def _visited(self, visit: Any, others: tuple[Any, ...], path: tuple[str, ...]) -> Any:
        made = self._inner._visited(visit, tuple(map(_open, others)), path)
        return self if made is self._inner else made if made is None else self._wrap(made)

    def _members(self, dim: int) -> Sequence[Any]:
        return [self._wrap(member) for member in self._inner._members(dim)]

    def _lazily(self, items: Any, dim: int) -> Any:
        return self._wrap(self._lazy_kind(*self._unwrapped(items), stack_dim=dim))

    @classmethod
    def _stack(cls, items: Sequence[Any], dim: int) -> Any:
        inner = cls._unwrapped(items)
        return items[0]._wrap(inner[0]._stack(inner, dim))

    @classmethod
    def _cat(cls, items: Sequence[Any], dim: int) -> Any:
        inner = cls._unwrapped(items)
        return items[0]._wrap(inner[0]._cat(inner, dim))


def _asks(name: str) -> Call:
    """Return the verb that the node inside answers."""
    return lambda self, *args, **kwargs: getattr(self._inner, name)(*args, **kwargs)


def _wraps(name: str) -> Call:
    """Return the verb whose answer, a node, comes back in the wrapping."""
    return lambda self, *args, **kwargs: self._wrap(getattr(self._inner, name)(*args, **kwargs))


for _name in (
    *"_spread_lock _lift_lock _live_lockers _bare _resident _even _row_leaves _fold _look _read_as _read_at".split(),
    *"_shape_at _write_at _admits_batch _set_batch _mark _set _del _nodes _name_dims _shown _sides".split(),
):
    setattr(Facade, _name, _asks(_name))
for _name in (
    *"_move _resize _reduce _rearrange _batch_of _read_rows _apart _row_child _completed _like _restructure".split(),
    "_dense",
):
    setattr(Facade, _name, _wraps(_name))


def _open(node: Any) -> Any:
    """Return the node inside a facade, and any other value as it is."""
    return node._inner if isinstance(node, Facade) else node
