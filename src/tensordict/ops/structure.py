"""Words on the structure: which keys there are, how they nest, and what is made of several."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from tensordict import errors
from tensordict.aliases import NO_DEFAULT, NestedKey, SizeLike
from tensordict.core import coerce, walk
from tensordict.core.core import Core, S
from tensordict.core.facts import Facts
from tensordict.core.locks import leads_back
from tensordict.keys import unravel_key, unravel_key_to_tuple
from tensordict.meta import Meta, as_batch, as_names
from tensordict.ops.keyed import Keyed
from tensordict.ops.pack import PackLayout, packed

if TYPE_CHECKING:
    from typing_extensions import Self

K = TypeVar("K", bound="Structure")
IsLeaf = Callable[[type], bool]


class Structure(Keyed):
    """Requires: the words on keys, `_restructure`, `_like`. Gives: the words that change which keys there are."""

    def select(self, *keys: NestedKey, inplace: bool = False, strict: bool = True, as_tensordict: bool = False) -> Self:
        """Return a tensordict with some of the keys; values are not copied.

        Args:
            *keys: the keys, nested ones as tuples.
            inplace: remove the other keys here, and return self.
            strict: raise for a missing key.
            as_tensordict: of a tensorclass, return the tensordict of the keys.

        Raises:
            KeyError: for a missing key, if ``strict``.

        Examples:
            >>> from tensordict import TensorDict
            >>> list(TensorDict({"a": 1, "b": 2}).select("b").keys())
            ['b']
        """
        if as_tensordict:
            return self._untyped().select(*keys, inplace=inplace, strict=strict)  # type: ignore[no-any-return]
        if not inplace and all([type(key) is str for key in keys]):
            return cast("Self", self._restructure(lambda node: _picked(node, keys, strict)))
        paths = [unravel_key_to_tuple(key) for key in keys]
        if strict:
            for path in paths:
                if walk.find(self, path) is None:
                    raise errors.missing_key(path if len(path) > 1 else path[0], self._keys(), type(self).__name__)
        return _restructured(self, lambda node: _selected(node, paths), inplace, "select keys")

    def _rekey(self, made: Any) -> None:
        """Take the keys and the children of a node that was made of me."""
        children = dict(made._raw_pairs())
        for key in list(self._keys()):
            self._del(key)
        for key, child in children.items():
            self._set(key, child)

    def _untyped(self) -> Any:
        """Return me with free keys: of a tensorclass, the node inside."""
        return self

    def exclude(self, *keys: NestedKey, inplace: bool = False) -> Self:
        """Return a tensordict without some of the keys; values are not copied.

        Args:
            *keys: the keys, nested ones as tuples; missing ones are ignored.
            inplace: remove them here, and return self.

        Examples:
            >>> from tensordict import TensorDict
            >>> list(TensorDict({"a": 1, "b": 2}).exclude("b").keys())
            ['a']
        """
        if not inplace and all([type(key) is str for key in keys]):
            return cast("Self", self._restructure(lambda node: _left(node, keys)))
        paths = [unravel_key_to_tuple(key) for key in keys]
        return _restructured(self, lambda node: _excluded(node, paths), inplace, "exclude keys")

    def rename_key_(self, old_key: NestedKey, new_key: NestedKey, safe: bool = False) -> Self:
        """Give a value another key; return self.

        Args:
            old_key: a key that exists.
            new_key: the key that it gets.
            safe: raise if the new key is taken, instead of replacing its value.

        Raises:
            KeyError: if the old key is missing, or ``safe`` and the new one is taken.

        Examples:
            >>> from tensordict import TensorDict
            >>> list(TensorDict({"a": 1}).rename_key_("a", "b").keys())
            ['b']
        """
        old, new = unravel_key_to_tuple(old_key), unravel_key_to_tuple(new_key)
        self._gate("rename key {!r}", old_key)
        if old == new:
            return self
        if safe and new_key in self:
            raise KeyError(f"cannot rename {old_key!r} to {new_key!r}: the new key is taken")
        if len(old) > 1 or len(new) > 1:
            self._restructure(lambda node: _renamable(node, old, new))
        elif old[0] not in self._keys():
            self._get(old[0])  # says who has it
        self._restructure(lambda node: _renamed(node, old, new))
        return self

    def flatten_keys(self, separator: str = ".", inplace: bool = False, is_leaf: IsLeaf | None = None) -> Self:
        """Return a tensordict without nesting: nested keys become strings joined by a separator.

        Args:
            separator: what joins the parts of a key.
            inplace: change the keys here, and return self.
            is_leaf: called with the class of a value; tells what is not gone into.

        Raises:
            KeyError: if two keys become the same.

        Examples:
            >>> from tensordict import TensorDict
            >>> list(TensorDict({"a": {"b": 1}}).flatten_keys(".").keys())
            ['a.b']
        """
        leaf = walk.is_leaf_nontensor if is_leaf is None else lambda kind: is_leaf(kind) or not issubclass(kind, Core)
        made = _restructured(self, lambda node: _flat(node, separator, leaf), inplace, "flatten keys")
        return leads_back(made, self, "unflatten_keys", separator)

    def unflatten_keys(self, separator: str = ".", inplace: bool = False) -> Self:
        """Return a tensordict nested at a separator in the keys: the inverse of `flatten_keys`.

        Args:
            separator: where keys are split.
            inplace: change the keys here, and return self.

        Raises:
            KeyError: if a key would be both a value and a nested tensordict.

        Examples:
            >>> from tensordict import TensorDict
            >>> list(TensorDict({"a.b": 1}).unflatten_keys(".").keys(True, True))
            [('a', 'b')]
        """
        made = _restructured(self, lambda node: _nested(node, separator), inplace, "unflatten keys")
        return leads_back(made, self, "flatten_keys", separator)

    def empty(
        self,
        recurse: bool = False,
        *,
        batch_size: SizeLike | None = None,
        device: Any = NO_DEFAULT,
        names: Any = NO_DEFAULT,
    ) -> Self:
        """Return a tensordict of the same batch size without values.

        Args:
            recurse: keep the nested tensordicts, empty too.
            batch_size: another batch size.
            device: another device.
            names: other names of the batch dims.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"a": [1, 2]}, [2]).empty().batch_size
            torch.Size([2])
        """
        meta = self._meta
        if batch_size is not None:
            meta = Meta(as_batch(batch_size), meta.device)
        if device is not NO_DEFAULT:
            meta = meta._replace(device=None if device is None else torch.device(device))
        if names is not NO_DEFAULT:
            meta = meta._replace(names=as_names(names, len(meta.batch)))
        node: Any = self._emptied(meta)
        if recurse:
            for key in self._keys():
                child = self._look(key)
                if isinstance(child, Core) and not child._is_non_tensor:
                    node._set(key, child.empty(True))  # type: ignore[attr-defined]
        return node  # type: ignore[no-any-return]

    def _emptied(self, meta: Meta) -> Any:
        return self._like({}, meta)

    def split_keys(
        self,
        *key_sets: Sequence[NestedKey],
        inplace: bool = False,
        default: Any = NO_DEFAULT,
        strict: bool = True,
        reproduce_struct: bool = False,
    ) -> tuple[Self, ...]:
        """Return one tensordict for each set of keys, and one with the keys that are left.

        Args:
            *key_sets: lists of keys. A set takes its values out, of nodes too; later ones have what is left.
            inplace: the last result is this tensordict, without the keys of the sets.
            default: the value of a missing key.
            strict: raise for a missing key that has no default.
            reproduce_struct: keep nested tensordicts of which nothing is left, empty.

        Raises:
            KeyError: for a missing key, or one that an earlier set has taken.

        Examples:
            >>> from tensordict import TensorDict
            >>> first, rest = TensorDict({"a": 1, "b": 2, "c": 3}).split_keys(["a"])
            >>> list(first.keys()), list(rest.keys())
            (['a'], ['b', 'c'])
        """
        parts, rest = [], self
        for keys in key_sets:
            parts.append(_part(rest, keys, default, strict))
            rest = rest.exclude(*keys)
        if inplace:
            rest = self.exclude(*(key for keys in key_sets for key in keys), inplace=True)
        if not reproduce_struct:
            rest = rest.filter_empty_() if inplace else _without_new_empties(rest, self)
        else:
            parts = [_with_nodes(part, self) for part in parts]
        return (*parts, rest)

    def separates(
        self,
        *keys: NestedKey,
        default: Any = NO_DEFAULT,
        strict: bool = True,
        filter_empty: bool = True,
    ) -> Self:
        """Take keys out of this tensordict, and return a tensordict of them.

        Args:
            *keys: the keys.
            default: the value of a missing key.
            strict: raise for a missing key that has no default.
            filter_empty: remove nested tensordicts of which nothing is left.

        Raises:
            KeyError: for a missing key.

        Examples:
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"a": 1, "b": 2})
            >>> list(td.separates("a").keys()), list(td.keys())
            (['a'], ['b'])
        """
        self._gate("take out keys")
        part = _part(self, keys, default, strict)
        kept = {key for key in self.keys(True) if self._is_empty_node(key)}
        self.exclude(*keys, inplace=True)
        if filter_empty:
            self._drop_empty(kept)
        return part  # type: ignore[no-any-return]

    def _is_empty_node(self, key: NestedKey) -> bool:
        found = walk.find(self, unravel_key_to_tuple(key))
        return isinstance(found, Core) and not _holds(found)

    def _drop_empty(self, kept: Iterable[Any] = ()) -> None:
        for key in list(self.keys(True)):
            if key not in kept and key in self and self._is_empty_node(key):
                self.del_(key)

    def filter_empty_(self) -> Self:
        """Remove nested tensordicts that hold nothing; return self.

        Examples:
            >>> from tensordict import TensorDict
            >>> list(TensorDict({"a": 1, "b": {"c": {}}}).filter_empty_().keys())
            ['a']
        """
        self._gate("remove keys")
        self._drop_empty()
        return self

    def filter_non_tensor_data(self) -> Self:
        """Return a tensordict without its non-tensors.

        Examples:
            >>> from tensordict import TensorDict
            >>> list(TensorDict({"a": 1, "s": "text"}).filter_non_tensor_data().keys())
            ['a']
        """
        return cast("Self", self._restructure(_only_tensors))

    def non_tensor_items(self, include_nested: bool = False) -> tuple[tuple[Any, Any], ...]:
        """Return the pairs of key and non-tensor.

        Args:
            include_nested: those of nested tensordicts too.

        Examples:
            >>> from tensordict import TensorDict
            >>> [(key, value.data) for key, value in TensorDict({"a": 1, "s": "text"}).non_tensor_items()]
            [('s', 'text')]
        """
        found = self.items(include_nested, True, walk.is_leaf_nontensor)
        return tuple((key, value) for key, value in found if getattr(value, "_is_non_tensor", False))

    def rename_keys(self, mapping: Mapping[NestedKey, NestedKey], *, strict: bool = True) -> Self:
        """Return a tensordict in which values have other keys; this one stays as it is.

        Args:
            mapping: old keys to new ones.
            strict: raise for a missing key.

        Raises:
            KeyError: for a missing key, if ``strict``.

        Examples:
            >>> from tensordict import TensorDict
            >>> list(TensorDict({"a": 1}).rename_keys({"a": "b"}).keys())
            ['b']
        """
        result = self._structural_copy()
        for old, new in mapping.items():
            if strict or old in result:
                result.rename_key_(old, new)
        return result

    def replace(self, *args: Any, **kwargs: Any) -> Self:
        """Return a tensordict in which some values are others; this one stays as it is.

        Args:
            *args: one mapping or tensordict.
            **kwargs: values by key.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"a": 1, "b": 2}).replace(a=3)["a"]
            tensor(3)
        """
        return self._structural_copy().update(*args, **kwargs)

    def _structural_copy(self) -> Self:
        """Return a copy of the structure, unlocked, with the same leaves."""
        return self.clone(False)  # type: ignore[attr-defined,no-any-return]

    def create_nested(self, key: NestedKey) -> Self:
        """Set an empty nested tensordict; return self.

        Args:
            key: its key; missing levels above are made.

        Examples:
            >>> from tensordict import TensorDict
            >>> list(TensorDict({}, [2]).create_nested(("a", "b")).keys(True))
            [('a', 'b'), 'a']
        """
        return self.set(key, {})

    def clear(self) -> Self:
        """Remove all keys; return self.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"a": 1}).clear().is_empty()
            True
        """
        self._gate("remove keys")
        for key in list(self._keys()):
            self._del(key)
        return self

    def popitem(self) -> tuple[str, Any]:
        """Remove the last key, and return it with its value.

        Raises:
            KeyError: if there is none.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"a": 1, "b": 2}).popitem()
            ('b', tensor(2))
        """
        names = list(self._keys())
        if not names:
            raise KeyError(f"popitem: this {type(self).__name__} has no keys")
        return names[-1], self.pop(names[-1])

    # ---- values joined

    def cat_tensors(self, *keys: NestedKey, out_key: NestedKey, dim: int = 0, keep_entries: bool = False) -> Self:
        """Concatenate some values to one, under a new key; return self.

        Args:
            *keys: the keys of the values.
            out_key: the new key.
            dim: the dim of the values to concatenate along.
            keep_entries: keep the values too.

        Raises:
            RuntimeError: if the result does not have the batch size; nothing is changed then.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"a": torch.zeros(2, 3), "b": torch.ones(2, 1)}, [2])
            >>> td.cat_tensors("a", "b", out_key="c", dim=-1)["c"].shape
            torch.Size([2, 4])
        """
        return _joined(self, torch.cat, keys, out_key, dim, keep_entries)

    def stack_tensors(self, *keys: NestedKey, out_key: NestedKey, dim: int = 0, keep_entries: bool = False) -> Self:
        """Stack some values to one, under a new key; return self.

        Args:
            *keys: the keys of the values.
            out_key: the new key.
            dim: where the new dim stands.
            keep_entries: keep the values too.

        Raises:
            RuntimeError: if the result does not have the batch size; nothing is changed then.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"a": torch.zeros(2), "b": torch.ones(2)}, [2])
            >>> td.stack_tensors("a", "b", out_key="c", dim=-1)["c"].shape
            torch.Size([2, 2])
        """
        return _joined(self, torch.stack, keys, out_key, dim, keep_entries)

    def cat_from_tensordict(self, dim: int = 0, *, sorted: bool | None = None, out: Tensor | None = None) -> Tensor:
        """Return all values concatenated to one tensor.

        Args:
            dim: the dim of the values to concatenate along.
            sorted: in alphabetical order of the keys, instead of their own.
            out: a tensor that the result is written to.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"a": torch.zeros(2, 3), "b": torch.ones(2, 1)}, [2]).cat_from_tensordict(1).shape
            torch.Size([2, 4])
        """
        return torch.cat(list(self.values(True, True, sort=bool(sorted))), dim, out=out)

    def stack_from_tensordict(self, dim: int = 0, *, sorted: bool | None = None, out: Tensor | None = None) -> Tensor:
        """Return all values stacked to one tensor.

        Args:
            dim: where the new dim stands.
            sorted: in alphabetical order of the keys, instead of their own.
            out: a tensor that the result is written to.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"a": torch.zeros(2), "b": torch.ones(2)}, [2]).stack_from_tensordict(-1).shape
            torch.Size([2, 2])
        """
        return torch.stack(list(self.values(True, True, sort=bool(sorted))), dim, out=out)

    def pack(self, dim: int = -1, *, layout: PackLayout | None = None) -> tuple[Tensor, PackLayout]:
        """Return all leaves side by side in one tensor, and the layout whose `unpack` makes a tensordict of it again.

        Args:
            dim: where the dim of the columns stands among the batch dims.
            layout: the layout to follow; by default, leaves are in alphabetical order of their keys.

        Raises:
            TypeError: if there are non-tensors, or leaves of different dtypes.
            KeyError: if the keys are not those of the layout.
            ValueError: if the shapes or the dim are not.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.zeros(4, 2), "n": {"y": torch.ones(4)}}, [4])
            >>> flat, layout = td.pack()
            >>> flat.shape, (layout.unpack(flat) == td).all()
            (torch.Size([4, 3]), True)
        """
        return packed(self, dim, layout)

    # ---- non-tensors

    def set_non_tensor(self, key: NestedKey, value: Any) -> Self:
        """Set any object as a value, as it is; return self.

        Args:
            key: the key.
            value: the object, also one that `set` would make a tensor of.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({}).set_non_tensor("a", [1, 2])["a"]
            [1, 2]
        """
        return self.set(key, coerce.non_tensor(value, self._meta))

    def get_non_tensor(self, key: NestedKey, default: Any = NO_DEFAULT) -> Any:
        """Return the object of a non-tensor, or the value of any other key.

        Args:
            key: the key.
            default: returned when the key is missing; without it, a missing key raises KeyError.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"s": "text"}).get_non_tensor("s")
            'text'
        """
        if default is not NO_DEFAULT and key not in self:
            return default
        return self._read(key)

    def is_non_tensor(self, key: NestedKey) -> bool:
        """Tell whether a value is a non-tensor.

        Args:
            key: the key.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"s": "text"}).is_non_tensor("s")
            True
        """
        kind = type(walk.find(self, unravel_key_to_tuple(key)))
        return walk.is_leaf_nontensor(kind) and not walk.default_is_leaf(kind)

    def entry_class(self, key: NestedKey) -> type:
        """Return the class of a value, without reading it.

        Args:
            key: the key.

        Raises:
            KeyError: if there is no such key.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"a": 1}).entry_class("a").__name__
            'Tensor'
        """
        found = walk.find(self, unravel_key_to_tuple(key))
        if found is None:
            raise errors.missing_key(key, self._keys(), type(self).__name__)
        return type(found)

    def get_item_shape(self, key: NestedKey) -> torch.Size:
        """Return the shape of a value; sizes in which the members of a lazy stack differ are -1.

        Args:
            key: the key.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"a": torch.zeros(2, 3)}, [2]).get_item_shape("a")
            torch.Size([2, 3])
        """
        holder, last = self._holder(key)
        return torch.Size(holder._shape_at(last, lambda sizes: -1))

    @property
    def sorted_keys(self) -> list[str]:
        """Return the keys in alphabetical order.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"b": 1, "a": 2}).sorted_keys
            ['a', 'b']
        """
        return sorted(self._keys())


def _restructured(self: S, call: Callable[[Any], Any], inplace: bool, what: str) -> S:
    if not inplace:
        return cast(S, self._restructure(call))
    self._gate(what)
    self._rekey(self._restructure(call))  # type: ignore[attr-defined]
    return self


def _picked(node: Any, keys: Sequence[Any], strict: bool) -> Any:
    """Return a node of some of the children directly below."""
    get, present = node._get, node._keys()
    return node._rekeyed({key: get(key) for key in (keys if strict else [k for k in keys if k in present])})


def _selected(node: Any, paths: Iterable[tuple[str, ...]]) -> Any:
    children: dict[str, Any] = {}
    inner: dict[str, list[tuple[str, ...]]] = {}
    present = node._keys()
    for key, *rest in paths:
        if key not in present:
            continue
        if rest:
            inner.setdefault(key, []).append(tuple(rest))
        children[key] = node._get(key) if not rest else children.get(key)
    for key, tails in inner.items():
        if children[key] is None and isinstance(node._get(key), Core):
            children[key] = node._get(key)._restructure(partial(_selected, paths=tails))
    return node._rekeyed({k: v for k, v in children.items() if v is not None})


def _left(node: Any, gone: Collection[Any]) -> Any:
    return node._rekeyed({key: child for key, child in node._raw_pairs() if key not in gone})


def _excluded(node: Any, paths: Iterable[tuple[str, ...]]) -> Any:
    gone = {path[0] for path in paths if len(path) == 1}
    children = {}
    for key in node._keys():
        if key in gone:
            continue
        child = node._get(key)
        tails = [path[1:] for path in paths if len(path) > 1 and path[0] == key]
        if tails and isinstance(child, Core):
            child = child._restructure(partial(_excluded, paths=tails))
        children[key] = child
    return node._rekeyed(children)


def _renamable(node: Any, old: tuple[str, ...], new: tuple[str, ...]) -> Any:
    """Raise, before anything is changed, unless a value can get another key."""
    holder, last = node._holder(old)
    value = holder._get(last)
    if new[: len(old)] == old:
        raise KeyError(f"cannot rename {old!r} to {new!r}: a value cannot be put into itself")
    holder._gate("rename key {!r}", old)
    node._opened(new, value)
    return node


def _renamed(node: Any, old: tuple[str, ...], new: tuple[str, ...]) -> Any:
    holder, last = node._holder(old)
    if last not in holder._keys():  # a node of several members
        return node
    value = holder._get(last)
    if len(old) == len(new) == 1:
        node._del(last)
        node._set(new[0], value)
        return node
    node.set(new, value)
    if old[: len(new)] != new:
        holder._del(last)
    return node


def _flat(node: Any, separator: str, is_leaf: IsLeaf) -> Any:
    found = [(separator.join(path), child) for path, child in walk.pairs(node, True, True, is_leaf)]
    children = dict(found)
    if len(children) < len(found):
        names = [key for key, _ in found]
        twice = next(key for key in names if names.count(key) > 1)
        raise KeyError(f"flattening keys with {separator!r} makes two values of key {twice!r}; use another separator")
    return node._rekeyed(children)


def _nested(node: Any, separator: str) -> Any:
    tree: dict[str, Any] = {}
    for key, child in node._raw_pairs():
        *path, last = key.split(separator)
        level = tree
        for part in path:
            below = level.setdefault(part, {})
            if isinstance(below, Core):  # its children, in a level of their own: what it is part of stays as it is
                below = level[part] = dict(below._raw_pairs())
            if not isinstance(below, dict):
                raise KeyError(f"unflattening keys with {separator!r}: {key!r} clashes with a value at {part!r}")
            level = below
        if last in level:
            raise KeyError(f"unflattening keys with {separator!r}: {key!r} is there twice")
        level[last] = child
    return _grown(node, tree)


def _grown(node: Any, tree: dict[str, Any]) -> Any:
    """Return a node like another of nested dicts of children; nodes among them are copied, with the same leaves."""
    children = {key: _grown(node, child) if type(child) is dict else _own(child) for key, child in tree.items()}
    return node._rekeyed(children)


def _own(child: Any) -> Any:
    return child if isinstance(child, Tensor) or child._is_non_tensor else child.clone(False)


def _holds(child: Any) -> bool:
    """Tell whether there is a leaf, or a non-tensor, in a child, in any member of a lazy stack too."""
    return not isinstance(child, Core) or child._is_non_tensor or child._fold(_holds, any)


def _only_tensors(node: Any) -> Any:
    children = {}
    for key, child in node._raw_pairs():
        if not isinstance(child, Core) or child._is_unbatched:
            children[key] = child
        elif not child._is_non_tensor:
            children[key] = child._restructure(_only_tensors)
    return node._rekeyed(children)


def _part(node: Any, keys: Iterable[NestedKey], default: Any, strict: bool) -> Any:
    """Return a tensordict of some keys; a missing one gets the default, or raises, or is left out."""
    wanted = [unravel_key(key) for key in keys]
    missing = [key for key in wanted if key not in node]
    if missing and default is NO_DEFAULT and strict:
        raise errors.missing_key(missing[0], node._keys(), type(node).__name__)
    part = node.select(*wanted, strict=False)
    for key in missing if default is not NO_DEFAULT else ():
        part.set(key, default)
    return part


def _without_new_empties(rest: Any, source: Any) -> Any:
    """Return the rest of a split without nested nodes that the split emptied."""
    for key in list(rest.keys(True)):
        if key in rest and rest._is_empty_node(key) and not source._is_empty_node(key):
            rest.del_(key)
    return rest


def _with_nodes(part: Any, source: Any) -> Any:
    """Return a part with all nested nodes of its source, those it has nothing of empty."""
    for key in source.keys(True):
        found = walk.find(source, unravel_key_to_tuple(key))
        if isinstance(found, Facts) and not found._is_non_tensor and key not in part:
            part.set(key, found.empty())  # type: ignore[attr-defined]
    return part


def _joined(self: K, join: Any, keys: Sequence[NestedKey], out_key: NestedKey, dim: int, keep: bool) -> K:
    self._gate("set key {!r}", out_key)
    value = join([self._found(key) for key in keys], dim)
    value = coerce.child(out_key, value, self._meta)
    if not keep:
        self.exclude(*keys, inplace=True)
    return self.set(out_key, value)
