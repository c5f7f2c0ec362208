"""The core: the verbs that a kind of container implements, and the way torch functions find them.

A node answers to the same words as a tensor. An operation on a node is the same word said to each child, so recursion
is method dispatch and no child is asked what it is. A kind is a way of telling its children: it implements the verbs
below, and every operation is written once on top of them.

========== =====================================================================
verb       meaning
========== =====================================================================
_map       say a call to each child; the batch stays. `many` says it to a list of plain leaves at once
_zip       the same with other nodes, children paired by key
_each      say a call to each child, in place; returns self
_move      dims permuted, inserted or dropped by a rule
_resize    dims mixed: reshape, expand, reduce
_split     one node to many
_fold      a Python answer from all leaves
_index     read by a plan; `_write` writes by one
_get       one raw child; `_set`, `_del`, `_keys` likewise
_stamp     change batch, device or names of a fresh node in place
_stack     join nodes along a new dim; `_cat` along an old one
========== =====================================================================
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from tensordict.aliases import Batch, Call, Names, Rule
from tensordict.core.locks import Lockable
from tensordict.indexing import Plan
from tensordict.meta import Meta

if TYPE_CHECKING:
    from typing_extensions import Self

TORCH: dict[Any, Callable[..., Any]] = {}
"""What each torch function does to a node. Filled at import, only read afterwards."""

PRESENTED: set[type] = set()
"""The kinds that users do not get as they are: their `_entry` is something else. One is added when it is first made."""

_NOT_PICKLED = ("_lockers", "_undo", "_entered", "_row_meta", "_records")

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound="Core")


def implements(*functions: Any) -> Callable[[F], F]:
    """Register a function as what the given torch functions do to nodes."""

    def register(call: F) -> F:
        TORCH.update(dict.fromkeys(functions, call))
        return call

    return register


class Core(Lockable):
    """The abstract verbs. Words of users live in the mixins of `ops`."""

    _meta: Meta
    _is_non_tensor: ClassVar[bool] = False
    _is_unbatched: ClassVar[bool] = False
    _has_rows: ClassVar[bool] = True  # False for a kind that is one value for any batch size
    _is_typed: ClassVar[bool] = False
    _moves: bool = True  # whether the leaves can be put elsewhere
    _home: Any = None
    __hash__: ClassVar[None]  # type: ignore[assignment]

    # The constructors that words need to build other containers: `kinds` fills them when it is imported.
    _dense_kind: ClassVar[Any]
    _lazy_kind: ClassVar[Any]
    _non_tensor_kind: ClassVar[Any]
    _typed_kind: ClassVar[Any]
    _attrs_kind: ClassVar[Any]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # for each item of a list, torch looks it up base by base, past Python's cache: each class has it itself
        cls.__torch_function__ = inspect.getattr_static(cls, "__torch_function__")  # type: ignore[method-assign]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        handler = TORCH.get(func)
        return NotImplemented if handler is None else handler(*args, **(kwargs or {}))

    if TYPE_CHECKING:

        def _map(self, call: Call, many: Call | None = None) -> Self: ...
        def _zip(self, call: Call, others: tuple[Any, ...], many: Call | None = None) -> Self: ...
        def _each(self, call: Call, others: tuple[Any, ...] = (), many: Call | None = None) -> Self: ...
        def _move(self, rule: Rule, call: Call) -> Self: ...
        def _resize(self, call: Call, batch: Batch, names: Names = None) -> Self: ...
        def _reduce(self, call: Call, batch: Batch, names: Names = None) -> Self: ...
        def _rearrange(self, call: Call, batch: Batch, names: Names = None) -> Self: ...
        def _split(self, call: Call, batches: Sequence[Batch], dim: int) -> tuple[Self, ...]: ...
        def _fold(self, call: Call, combine: Callable[[Iterable[Any]], Any]) -> Any: ...
        def _index(self, plan: Plan) -> Self: ...
        def _write(self, plan: Plan, value: Any) -> None: ...
        def _get(self, key: str) -> Any: ...
        def _look(self, key: str) -> Any: ...
        def _looks(self) -> Iterable[tuple[str, Any]]: ...
        def _pairs(self) -> Iterable[tuple[str, Any]]: ...
        def _raw_pairs(self) -> Iterable[tuple[str, Any]]: ...
        def _set(self, key: str, child: Any) -> None: ...
        def _del(self, key: str) -> None: ...
        def _keys(self) -> Collection[str]: ...
        def _stamp(self, meta: Meta) -> Self: ...
        def _like(self, children: dict[str, Any], meta: Meta) -> Self: ...
        def _given(self) -> Any: ...
        def _entry(self) -> Any: ...
        def _dense(self) -> Any: ...
        def _apart(self) -> Self: ...
        def _bare(self) -> Any: ...
        def _restructure(self, call: Callable[[Any], Any]) -> Any: ...
        def _place(self, room: Any, kind: str, fill: bool) -> Self: ...
        def _adopt(self, placed: Any) -> None: ...
        def _lazily(self, items: Sequence[Any], dim: int) -> Any: ...
        def _members(self, dim: int) -> Sequence[Any]: ...
        def _shown(self, child: Any) -> Any: ...
        @classmethod
        def _stack(cls, items: Sequence[Any], dim: int) -> Any: ...
        @classmethod
        def _cat(cls, items: Sequence[Any], dim: int) -> Any: ...

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _NOT_PICKLED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if state.get("_locked"):
            self._spread_lock(())

    def _match(self, trial: Any, others: tuple[Any, ...] = ()) -> None:
        """Raise, before anything is changed, if a call in place cannot be said to my children and those of others."""

    def _each_at_once(self, many: Call, others: tuple[Any, ...]) -> bool:
        """Say a call in place to all leaves at once, where a kind can; tell whether it is done."""
        return False

    def _only_leaves(self) -> bool:
        """Tell whether all children are known to be plain tensors."""
        return False

    def _pour_all(self, value: Any) -> bool:
        """Copy all leaves of a node into mine at once, where a kind can; tell whether it is done."""
        return False

    def _writable(self) -> None:
        """Raise when values may not change, as in a dataset opened for reading."""
        if self._home is not None and self._home.mode == "r":
            raise PermissionError(
                f"cannot write: this {type(self).__name__} was opened from {self._home.path!r} with mode='r'; "
                f"open it with mode='r+'"
            )

    def _nodes(self) -> list[Lockable]:
        return [child for child in map(self._get, self._keys()) if isinstance(child, Core)]
