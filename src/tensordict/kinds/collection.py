"""The base of all kinds, assembled from the families of words."""

from __future__ import annotations

import types
from typing import Any

from torch import Tensor

from tensordict.core import walk
from tensordict.ops.cast import Cast
from tensordict.ops.consolidate import Consolidate
from tensordict.ops.convert import Convert
from tensordict.ops.describe import Describe
from tensordict.ops.gather import Gather, alike
from tensordict.ops.join import Join
from tensordict.ops.load import Load
from tensordict.ops.make import Make
from tensordict.ops.mapped import Mapped
from tensordict.ops.parallel.words import Parallel
from tensordict.ops.persist import Persist
from tensordict.ops.pointwise import Pointwise
from tensordict.ops.reduce import Reduce
from tensordict.ops.shape import Shape
from tensordict.ops.structure import Structure


class TensorCollection(
    Structure,
    Pointwise,
    Reduce,
    Shape,
    Gather,
    Cast,
    Load,
    Consolidate,
    Mapped,
    Persist,
    Convert,
    Make,
    Join,
    Parallel,
    Describe,
):
    """Be the base of every container: tensordicts, lazy stacks, tensorclasses, non-tensors.

    Examples:
        >>> from tensordict import NonTensorData, TensorCollection, TensorDict
        >>> isinstance(TensorDict({}), TensorCollection), isinstance(NonTensorData(1), TensorCollection)
        (True, True)
    """

    def _lazily(self, items: Any, dim: int) -> Any:
        """Return nodes of which this is the first as a lazy stack."""
        return self._lazy_kind(*items, stack_dim=dim)

    def _rearrange(self, call: Any, batch: Any, names: Any = None) -> Any:
        """Return a node of my rows, and new ones among them, in new memory."""
        return self._reduce(call, batch, names)

    def _apart(self) -> Any:
        """Return my rows in memory of their own, where a word that picked them may share it: free, unlocked."""
        return self._map(lambda v: v if isinstance(v, Tensor) else v._apart())

    def _read_rows(self, plan: Any) -> Any:
        """Return rows in memory of their own, read by a plan of row numbers along the first dim."""
        return self._index(plan)._apart()

    def _resident(self) -> bool:
        """Tell whether my values are there without being read from a store."""
        return True

    def _bare(self) -> Any:
        """Return the node inside a facade; it has the children."""
        return self

    def _into(self, reading: Any, out: Any) -> Any:
        """Return the calls that copy the rows of a reading to another node; raise before any of them if they cannot."""
        rows = self._read_rows(reading.plan(self._meta.batch))._bare()
        alike(rows, out)
        return [lambda: out._write(out._plan(()), rows)]

    def _pairs(self) -> Any:
        """Return the keys and the values directly below, as users get them."""
        return walk.shown_pairs(self)

    def _raw_pairs(self) -> Any:
        """Return the keys and the children directly below."""
        return [(key, self._get(key)) for key in self._keys()]

    def _looks(self) -> Any:
        """Return the keys and what `_look` says of each."""
        return [(key, self._look(key)) for key in self._keys()]

    def _look(self, key: str) -> Any:
        """Return a child for its class and its keys; its values may be those of a part of it."""
        return self._get(key)

    def _row_leaves(self) -> list[Any]:
        """Return my leaves, and those of nodes below, that one gather of rows may read together."""
        return []

    def _row_child(self, plan: Any, picked: Any) -> Any:
        """Return me by the plan of a parent that copies rows; `picked` yields them for each of my row leaves."""
        return plan.call(self)

    def _given(self) -> Any:
        """Return what a user gets who reads this child by key."""
        return self

    def _entry(self) -> Any:
        """Return what `get`, `values` and `items` give for this child."""
        return self

    def _shown(self, child: Any) -> Any:
        """Return a child of mine as users get it."""
        return child

    def _mark(self, key: str) -> Any:
        """Return what is another object after the value at a key was replaced."""
        return self._get(key)

    def _marks(self) -> dict[walk.Path, Any]:
        """Return the marks of all leaves by path."""
        found = walk.places(self, (True, True, walk.is_leaf_nontensor), (), [])
        return {path: holder._mark(path[-1]) for holder, path in found}

    def _changed(self, marks: dict[walk.Path, Any]) -> Any:
        """Return a node of the leaves that were replaced or set since the marks were taken, or None."""
        paths = [path for path, mark in self._marks().items() if not _same(mark, marks.get(path))]
        return self.select(*paths) if paths else None


def _same(mark: Any, other: Any) -> bool:
    parts = isinstance(mark, tuple) and isinstance(other, tuple) and len(mark) == len(other)
    return mark is other or (parts and all(map(_same, mark, other)))


class TensorDictBase(TensorCollection):
    """Be the base of the containers with free keys: `TensorDict` and `LazyStackedTensorDict`.

    Examples:
        >>> from tensordict import TensorDict, TensorDictBase
        >>> isinstance(TensorDict({}), TensorDictBase)
        True
    """

    def __class_getitem__(cls, item: Any) -> types.GenericAlias:
        """Return the class with the types of keys and values, for annotations; nothing checks them."""
        return types.GenericAlias(cls, item)
