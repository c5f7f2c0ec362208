"""The base of all kinds, assembled from the families of words."""

from __future__ import annotations

from typing import Any

from tensordict.core.walk import shown_pairs
from tensordict.ops.cast import Cast
from tensordict.ops.convert import Convert
from tensordict.ops.describe import Describe
from tensordict.ops.join import Join
from tensordict.ops.make import Make
from tensordict.ops.parallel.words import Parallel
from tensordict.ops.pointwise import Pointwise
from tensordict.ops.reduce import Reduce
from tensordict.ops.shape import Shape
from tensordict.ops.store import Store
from tensordict.ops.structure import Structure


class TensorCollection(Structure, Pointwise, Reduce, Shape, Cast, Store, Convert, Make, Join, Parallel, Describe):
    """Be the base of every container: tensordicts, lazy stacks, tensorclasses, non-tensors.

    Examples:
        >>> from tensordict import NonTensorData, TensorCollection, TensorDict
        >>> isinstance(TensorDict({}), TensorCollection), isinstance(NonTensorData(1), TensorCollection)
        (True, True)
    """

    def _lazily(self, items: Any, dim: int) -> Any:
        """Return nodes of which this is the first as a lazy stack."""
        return self._lazy_kind(*items, stack_dim=dim)

    def _pairs(self) -> Any:
        """Return the keys and the values directly below, as users get them."""
        return shown_pairs(self)

    def _raw_pairs(self) -> Any:
        """Return the keys and the children directly below."""
        return [(key, self._get(key)) for key in self._keys()]

    def _looks(self) -> Any:
        """Return the keys and what `_look` says of each."""
        return [(key, self._look(key)) for key in self._keys()]

    def _look(self, key: str) -> Any:
        """Return a child for its class and its keys; its values may be those of a part of it."""
        return self._get(key)

    def _given(self) -> Any:
        """Return what a user gets who reads this child by key."""
        return self

    def _shown(self, child: Any) -> Any:
        """Return a child of mine as users get it."""
        return child


class TensorDictBase(TensorCollection):
    """Be the base of the containers with free keys: `TensorDict` and `LazyStackedTensorDict`.

    Examples:
        >>> from tensordict import TensorDict, TensorDictBase
        >>> isinstance(TensorDict({}), TensorDictBase)
        True
    """
