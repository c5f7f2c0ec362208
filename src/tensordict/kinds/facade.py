"""A facade wraps a node and forwards every verb to it; results come back in the same wrapping."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tensordict.aliases import Batch, Call, Names, Rule
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

    def _spread_lock(self, lockers: Any) -> None:
        self._inner._spread_lock(lockers)

    def _lift_lock(self, parent: Any) -> None:
        self._inner._lift_lock(parent)

    def _live_lockers(self, parent: Any = None) -> Any:
        return self._inner._live_lockers(parent)

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

    def _move(self, rule: Rule, call: Call) -> Self:
        return self._wrap(self._inner._move(rule, call))

    def _resize(self, call: Call, batch: Batch, names: Names = None) -> Self:
        return self._wrap(self._inner._resize(call, batch, names))

    def _reduce(self, call: Call, batch: Batch, names: Names = None) -> Self:
        return self._wrap(self._inner._reduce(call, batch, names))

    def _rearrange(self, call: Call, batch: Batch, names: Names = None) -> Self:
        return self._wrap(self._inner._rearrange(call, batch, names))

    def _split(self, call: Call, batches: Sequence[Batch], dim: int) -> tuple[Self, ...]:
        return tuple(map(self._wrap, self._inner._split(call, batches, dim)))

    def _fold(self, call: Call, combine: Callable[[Iterable[Any]], Any]) -> Any:
        return self._inner._fold(call, combine)

    def _index(self, plan: Plan) -> Self:
        return self._wrap(self._inner._index(plan))

    def _batch_of(self, plan: Plan) -> Self:
        return self._wrap(self._inner._batch_of(plan))

    def _read_rows(self, plan: Plan) -> Self:
        return self._wrap(self._inner._read_rows(plan))

    def _apart(self) -> Self:
        return self._wrap(self._inner._apart())

    def _bare(self) -> Any:
        return self._inner._bare()

    def _resident(self) -> bool:
        return bool(self._inner._resident())

    def _even(self) -> bool:
        return bool(self._inner._even())

    def _write(self, plan: Plan, value: Any) -> None:
        self._inner._write(plan, _open(value))

    def _admit(self, plan: Plan, value: Any) -> None:
        self._inner._admit(plan, _open(value))

    def _row_leaves(self) -> Any:
        return self._inner._row_leaves()

    def _row_child(self, plan: Any, picked: Any) -> Any:
        return self._wrap(self._inner._row_child(plan, picked))

    def _written(self, items: tuple[Any, ...], value: Any) -> Any:
        self._inner._written(items, _open(value))
        return self

    def _get(self, key: str) -> Any:
        return self._inner._get(key)

    def _look(self, key: str) -> Any:
        return self._inner._look(key)

    def _read_as(self, key: str, **options: Any) -> Any:
        return self._inner._read_as(key, **options)

    def _completed(self, padding: float | None) -> Any:
        return self._wrap(self._inner._completed(padding))

    def _read_at(self, key: str, index: Any) -> Any:
        return self._inner._read_at(key, index)

    def _sides(self, source: Any) -> Sequence[tuple[Any, Any]]:
        sides: Sequence[tuple[Any, Any]] = self._inner._sides(source)
        return sides

    def _shape_at(self, key: str, differs: Callable[[Any], int] = max) -> tuple[int, ...]:
        shape: tuple[int, ...] = self._inner._shape_at(key, differs)
        return shape

    def _write_at(self, key: str, value: Any, index: Any) -> None:
        self._inner._write_at(key, value, index)

    def _admits_batch(self, key: str, batch: Batch, nested: bool = True) -> None:
        self._inner._admits_batch(key, batch, nested)

    def _set_batch(self, batch: Batch) -> None:
        self._inner._set_batch(batch)

    def _mark(self, key: str) -> Any:
        return self._inner._mark(key)

    def _set(self, key: str, child: Any) -> None:
        self._inner._set(key, child)

    def _del(self, key: str) -> None:
        self._inner._del(key)

    def _keys(self) -> Collection[str]:
        keys: Collection[str] = self._inner._keys()
        return keys

    def _nodes(self) -> list[Any]:
        nodes: list[Any] = self._inner._nodes()
        return nodes

    def _name_dims(self, names: Names) -> None:
        self._inner._name_dims(names)

    def _stamp(self, meta: Meta) -> Self:
        self._inner._stamp(meta)
        return self

    def _like(self, children: dict[str, Any], meta: Meta) -> Self:
        return self._wrap(self._inner._like(children, meta))

    def _restructure(self, call: Callable[[Any], Any]) -> Any:
        return self._wrap(self._inner._restructure(call))

    def _rekey(self, made: Any) -> None:
        self._inner._rekey(made._inner)

    def _take(self, made: Any) -> None:
        self._inner._take(made._inner)

    def _adopt(self, placed: Any) -> None:
        self._inner._adopt(placed._inner)

    def _shown(self, child: Any) -> Any:
        return self._inner._shown(child)

    def _dense(self) -> Self:
        return self._wrap(self._inner._dense())

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


def _open(node: Any) -> Any:
    """Return the node inside a facade, and any other value as it is."""
    return node._inner if isinstance(node, Facade) else node
