"""The walk over a tree: the only place that asks whether a child is a leaf or a node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from tensordict import keys as nested
from tensordict.aliases import NO_DEFAULT, Batch
from tensordict.core.core import Core

IsLeaf = Callable[[type], bool]
Path = tuple[str, ...]


def default_is_leaf(kind: type) -> bool:
    """Tell whether a class is that of a leaf: everything that is not a tensor collection.

    Args:
        kind: a class.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict, default_is_leaf
        >>> default_is_leaf(torch.Tensor), default_is_leaf(TensorDict)
        (True, False)
    """
    return not issubclass(kind, Core) or kind._is_unbatched


def is_leaf_nontensor(kind: type) -> bool:
    """Tell whether a class is that of a leaf, when non-tensors count as leaves.

    Args:
        kind: a class.

    Examples:
        >>> from tensordict import NonTensorData, is_leaf_nontensor
        >>> is_leaf_nontensor(NonTensorData)
        True
    """
    return not issubclass(kind, Core) or bool(getattr(kind, "_is_non_tensor", False))


_OURS = (default_is_leaf, is_leaf_nontensor)


def pairs(node: Core, deep: bool, leaves_only: bool, is_leaf: IsLeaf) -> Iterator[tuple[Path, Any]]:
    """Yield path and raw child, depth first; with ``deep``, a node comes after what it holds."""
    return ((path, holder._get(path[-1])) for holder, path in places(node, (deep, leaves_only, is_leaf), (), []))


def places(
    node: Core, want: tuple[bool, bool, IsLeaf], path: Path, found: list[tuple[Any, Path]]
) -> list[tuple[Any, Path]]:
    """Collect the node that holds a child and the path of the child, without joining the values of a lazy stack."""
    deep, leaves_only, is_leaf = want
    plain = is_leaf in _OURS
    if plain and node._only_leaves():
        found.extend([(node, (*path, key)) for key in node._keys()])
        return found
    for key, child in node._looks():
        kind = type(child)
        if (plain and kind is Tensor) or is_leaf(kind):
            found.append((node, (*path, key)))
            continue
        at = (*path, key)
        if deep and isinstance(child, Core):
            places(child, want, at, found)
        if not leaves_only:
            found.append((node, at))
    return found


def count(node: Core, want: tuple[bool, bool, IsLeaf]) -> int:
    """Return how many places `places` collects: `list` asks for the length of what it is given."""
    deep, leaves_only, is_leaf = want
    if is_leaf in _OURS and node._only_leaves():
        return len(node._keys())
    total = 0
    for _, child in node._looks():
        leaf = is_leaf(type(child))
        total += (leaf or not leaves_only) + (deep and not leaf and isinstance(child, Core) and count(child, want))
    return total


def leaves(node: Any) -> list[Tensor]:
    """Return the leaves of a node, those of the members of a lazy stack one by one."""
    found: list[Tensor] = []

    def take(v: Any) -> None:
        if isinstance(v, Core):
            v._fold(take, list)
        else:
            found.append(v)

    take(node)
    return found


class View:
    """What `keys`, `values` and `items` return: it follows the tensordict, as the views of a dict do."""

    def __init__(self, node: Any, deep: bool, leaves_only: bool, is_leaf: IsLeaf | None, sort: bool) -> None:
        self._node, self._deep, self._leaves_only, self._sort = node, deep, leaves_only, sort
        self._is_leaf = default_is_leaf if is_leaf is None else is_leaf
        self._want = (deep, leaves_only, self._is_leaf)

    def _places(self) -> list[tuple[Any, Path]]:
        found = places(self._node, self._want, (), [])
        return sorted(found, key=lambda place: ".".join(place[1])) if self._sort else found

    def __len__(self) -> int:
        if not (self._deep or self._leaves_only):
            return len(list(self._node._keys()))
        return count(self._node, self._want)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)!r})"

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError


def _show(holder: Any, key: str) -> Any:
    child = holder._get(key)
    return holder._shown(child) if isinstance(child, Tensor) else child._entry()


def shown_pairs(node: Any) -> list[tuple[str, Any]]:
    """Return the keys and the values directly below a node, as users get them."""
    return [(key, _show(node, key)) for key in node._keys()]


def _plain(path: Path) -> str | Path:
    return path[0] if len(path) == 1 else path


class KeysView(View):
    """The keys; a nested key is a tuple."""

    def __iter__(self) -> Iterator[Any]:
        if not (self._deep or self._leaves_only or self._sort):
            return iter(list(self._node._keys()))
        return iter([path[0] if len(path) == 1 else path for _, path in self._places()])

    def __contains__(self, key: Any) -> bool:
        path = nested.unravel_key_to_tuple(key)
        if len(path) > 1 and not self._deep:
            return False
        found = find(self._node, path)
        return found is not None and (not self._leaves_only or self._is_leaf(type(found)))

    def __eq__(self, other: Any) -> bool:
        return set(self) == set(other)

    def __and__(self, other: Any) -> set[Any]:
        return set(self) & set(other)

    def __or__(self, other: Any) -> set[Any]:
        return set(self) | set(other)

    def __sub__(self, other: Any) -> set[Any]:
        return set(self) - set(other)

    def __rsub__(self, other: Any) -> set[Any]:
        return set(other) - set(self)

    def __xor__(self, other: Any) -> set[Any]:
        return set(self) ^ set(other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__
    __hash__ = None  # type: ignore[assignment]

    def isdisjoint(self, other: Any) -> bool:
        """Tell whether no key is in both."""
        return set(self).isdisjoint(other)


class ValuesView(View):
    """The values."""

    def __iter__(self) -> Iterator[Any]:
        if not (self._deep or self._leaves_only or self._sort):
            return (child for _, child in self._node._pairs())
        return (_show(holder, path[-1]) for holder, path in self._places())


class ItemsView(View):
    """The pairs of key and value; a nested key is a tuple."""

    def __iter__(self) -> Iterator[Any]:
        if not (self._deep or self._leaves_only or self._sort):
            return iter(self._node._pairs())
        return ((_plain(path), _show(holder, path[-1])) for holder, path in self._places())


def _protected(node: Any) -> Callable[[Any], Any] | None:
    """Return what makes leaves refuse to be written, for a node that may not be written."""
    home = node._home if isinstance(node, Core) else None
    return node._shown if home is not None and home.mode == "r" else None


def find(node: Any, path: Path) -> Any:
    """Return the raw child at a path, or None; of a lazy stack, one member's value stands for a value."""
    for key in path:
        if not isinstance(node, Core) or key not in node._keys():
            return None
        node = node._look(key)
    return node


class Visit(NamedTuple):
    """One `apply`: a user's function over the leaves, with its options, passed down as one object."""

    fn: Callable[..., Any]
    named: bool = False
    nested_keys: bool = False
    default: Any = NO_DEFAULT
    is_leaf: IsLeaf | None = None
    in_place: bool = False
    filter_empty: bool | None = None
    batch: Batch | None = None

    def children(self, node: Any, others: tuple[Any, ...], path: Path = ()) -> dict[str, Any]:
        """Return the new children of a node."""
        found: dict[str, Any] = {}
        if not others and self.is_leaf is None:
            return self._alone(node, path)
        shown = _protected(node)
        for key, child in node._raw_pairs():
            child = shown(child) if shown and isinstance(child, Tensor) else child
            parts = [self._part(other, key) for other in others]
            at = (*path, key)
            if (self.is_leaf or default_is_leaf)(type(child)) and not getattr(child, "_is_unbatched", False):
                result = self.call(at, [child._entry() if isinstance(child, Core) else child, *parts])
            else:
                result = child._visited(self, tuple(parts), at)
            if result is not None:
                found[key] = result
        return found

    def _alone(self, node: Any, path: Path) -> dict[str, Any]:
        """Return the new children of a node that is visited without others, by the short road."""
        fn, named, found = self.fn, self.named, {}
        shown = _protected(node)
        for key, child in node._raw_pairs():
            if isinstance(child, Tensor):
                child = shown(child) if shown else child
                result = fn(_plain((*path, key)) if self.nested_keys else key, child) if named else fn(child)
            else:
                result = child._visited(self, (), (*path, key))
            if result is not None:
                found[key] = result
        return found

    def _part(self, node: Any, key: str) -> Any:
        if self.default is not NO_DEFAULT and (not isinstance(node, Core) or key not in node._keys()):
            return self.default
        child, shown = node._get(key), _protected(node)
        if isinstance(child, Core):
            return child._entry() if self.is_leaf and self.is_leaf(type(child)) else child
        return shown(child) if shown else child

    def call(self, path: Path, parts: list[Any]) -> Any:
        """Call the user's function on one leaf."""
        if not self.named:
            return self.fn(*parts)
        return self.fn(_plain(path) if self.nested_keys else path[-1], *parts)
