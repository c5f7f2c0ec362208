"""Words on keys: reading, setting and removing by nested key; structure; batch size, names and device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from tensordict import errors, indexing, settings
from tensordict.aliases import NO_DEFAULT, NestedKey, SizeLike
from tensordict.core import coerce, walk
from tensordict.core.core import Core
from tensordict.core.facts import Facts
from tensordict.keys import unravel_key_to_tuple
from tensordict.meta import Meta, as_batch
from tensordict.ops.fit import in_dtype
from tensordict.ops.rows import in_place
from tensordict.ops.shape import written_batch

if TYPE_CHECKING:
    from typing_extensions import Self

F = TypeVar("F", bound="Keyed")
IsLeaf = Callable[[type], bool]

_READ_AS = {"as_list", "as_nested_tensor", "as_padded_tensor", "layout", "padding_side", "padding_value"}


class Keyed(Facts):
    """Requires: `_get`, `_set`, `_del`, `_keys`, `_restructure`, `_like`. Gives: the words on keys and properties."""

    # ---- reading

    def _read(self, key: NestedKey) -> Any:
        """Return a value as users get it: non-tensors as the object that they hold."""
        return self._read_path(unravel_key_to_tuple(key))

    def _read_path(self, path: tuple[str, ...]) -> Any:
        node: Any = self
        for part in path[:-1]:
            child = node._get(part)
            node = child if isinstance(child, Core) else enter(node, part)
        return node._read_one(path[-1])

    def _read_one(self, key: str) -> Any:
        child = self._get(key)
        return self._shown(child) if isinstance(child, Tensor) else child._given()

    def get(self, key: NestedKey, default: Any = NO_DEFAULT, **kwargs: Any) -> Any:
        """Return the value of a key, or a default when there is none.

        Args:
            key: a string, or a tuple for a nested key.
            default: returned when the key is missing; None if it is not given (see `set_get_defaults_to_none`).
            **kwargs: how a lazy stack joins values of different shapes: ``as_list``, ``as_nested_tensor`` or
                ``as_padded_tensor`` (with ``padding_side`` and ``padding_value``).

        Examples:
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"a": {"b": 1}})
            >>> td.get(("a", "b")), td.get("c", "none")
            (tensor(1), 'none')
        """
        try:
            if type(key) is not str or kwargs:
                return self._found(key, **kwargs)
            child = self._get(key)
            return self._shown(child) if isinstance(child, Tensor) else child._entry()
        except errors.MissingKey:
            if default is not NO_DEFAULT:
                return default
            if settings.get_defaults_to_none():
                return None
            raise

    def _found(self, key: NestedKey, **kwargs: Any) -> Any:
        """Return the value of a key, non-tensors as nodes; raise if it is missing."""
        node, last = self._holder(key)
        if not kwargs.keys() <= _READ_AS:
            raise TypeError(f"get() got the unknown arguments {sorted(kwargs.keys() - _READ_AS)}")
        child = node._read_as(last, **kwargs) if kwargs else node._get(last)
        if isinstance(child, Tensor):
            return node._shown(child)
        return child._entry() if isinstance(child, Core) else child

    def get_at(self, key: NestedKey, index: Any, default: Any = NO_DEFAULT) -> Any:
        """Return rows of the value of a key: ``get(key)[index]``, also where a lazy stack cannot join all rows.

        Args:
            key: a string, or a tuple for a nested key.
            index: what the value is indexed with.
            default: returned when the key is missing; without it, a missing key raises KeyError.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.arange(4)}, [4]).get_at("x", 2)
            tensor(2)
        """
        if default is not NO_DEFAULT and key not in self:
            return default
        holder, last = self._holder(key)
        return holder._read_at(last, index)

    def __contains__(self, key: Any) -> bool:
        if type(key) is str:
            return key in self._keys()
        return walk.find(self, unravel_key_to_tuple(key)) is not None

    def keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: IsLeaf | None = None,
        *,
        sort: bool = False,
    ) -> walk.KeysView:
        """Return a view of the keys that follows later changes.

        Args:
            include_nested: go into nested tensordicts; nested keys are tuples.
            leaves_only: leave out the nested tensordicts themselves.
            is_leaf: called with the class of a value; tells what counts as a leaf.
            sort: in alphabetical order.

        Examples:
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"a": {"b": 1}, "c": 2})
            >>> list(td.keys()), list(td.keys(True, True))
            (['a', 'c'], [('a', 'b'), 'c'])
        """
        if not (include_nested or leaves_only or sort):
            names: walk.KeysView = self._names()
            return names
        return walk.KeysView(self, include_nested, leaves_only, is_leaf, sort)

    def _names(self) -> Any:
        """Return a view of the keys directly below."""
        return walk.KeysView(self, False, False, None, False)

    def values(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: IsLeaf | None = None,
        *,
        sort: bool = False,
    ) -> walk.ValuesView:
        """Return a view of the values that follows later changes; arguments as for `keys`.

        Examples:
            >>> from tensordict import TensorDict
            >>> list(TensorDict({"a": {"b": 1}, "c": 2}).values(True, True))
            [tensor(1), tensor(2)]
        """
        if not (include_nested or leaves_only or sort):
            found: walk.ValuesView = self._values_view()
            return found
        return walk.ValuesView(self, include_nested, leaves_only, is_leaf, sort)

    def _values_view(self) -> Any:
        """Return a view of the values directly below."""
        return walk.ValuesView(self, False, False, None, False)

    def items(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: IsLeaf | None = None,
        *,
        sort: bool = False,
    ) -> walk.ItemsView:
        """Return a view of the pairs of key and value that follows later changes; arguments as for `keys`.

        Examples:
            >>> from tensordict import TensorDict
            >>> list(TensorDict({"a": {"b": 1}, "c": 2}).items(True, True))
            [(('a', 'b'), tensor(1)), ('c', tensor(2))]
        """
        if not (include_nested or leaves_only or sort):
            found: walk.ItemsView = self._items()
            return found
        return walk.ItemsView(self, include_nested, leaves_only, is_leaf, sort)

    def _items(self) -> Any:
        """Return a view of the pairs directly below."""
        return walk.ItemsView(self, False, False, None, False)

    def is_empty(self) -> bool:
        """Tell whether there is no leaf, nested ones included.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"a": {}}).is_empty()
            True
        """
        for _, child in self._looks():
            if type(child) is Tensor or not isinstance(child, Keyed) or child._is_non_tensor or not child.is_empty():
                return False
        return True

    # ---- setting

    def _door(self, key: str, value: Any) -> Any:
        """Return a value as a child of mine."""
        return coerce.child(key, value, self._meta)

    def _widen(self, key: str, batch: tuple[int, ...]) -> Any:
        """Return me with a longer batch size, for a parent that has it."""
        wide = self.clone(False)  # type: ignore[attr-defined]
        wide._give_batch(batch)
        return wide

    def set(self, key: NestedKey, item: Any, inplace: bool = False, *, non_blocking: bool = False) -> Self:
        """Set the value of a key; return self.

        Args:
            key: a string, or a tuple for a nested key; missing nested tensordicts are made.
            item: a tensor or tensordict whose leading dims are the batch size, a dict, a number, an array, a list,
                or any object, which becomes a non-tensor.
            inplace: copy into the memory of the value that is there, if there is one.
            non_blocking: with ``inplace``, copy without waiting.

        Raises:
            RuntimeError: if the keys are locked, or the leading dims are not the batch size.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({}, [2]).set(("a", "b"), torch.zeros(2))
            >>> td["a"].batch_size
            torch.Size([2])
        """
        if type(key) is str and not inplace:
            self._gate("set key {!r}", key)
            self._set(key, self._door(key, item))
            return self
        path = unravel_key_to_tuple(key)
        if inplace and walk.find(self, path) is not None:
            return self.set_(key, item, non_blocking=non_blocking)
        node, at, child = self._opened(path, item)
        for part in path[at:-1]:
            node._set(part, node._door(part, {}))
            node = node._get(part)
        node._set(path[-1], child)
        return self

    def _opened(self, path: tuple[str, ...], item: Any) -> tuple[Any, int, Any]:
        """Return the last node that there is on a path, its depth, and a value as a child there."""
        node: Any = self
        at = 0
        for part in path[:-1]:
            if part not in node._keys():
                break
            child = node._get(part)
            node, at = child if isinstance(child, Core) else enter(node, part), at + 1
        node._gate("set key {!r}", path if len(path) > 1 else path[0])  # it is locked if one above is
        return node, at, node._door(path[-1], item)

    def __delitem__(self, key: NestedKey) -> None:
        self.del_(key)

    def del_(self, key: NestedKey) -> Self:
        """Remove a key; return self.

        Raises:
            KeyError: if there is no such key.

        Examples:
            >>> from tensordict import TensorDict
            >>> list(TensorDict({"a": 1, "b": 2}).del_("a").keys())
            ['b']
        """
        node, last = self._holder(key)
        node._gate("delete key {!r}", key)
        _require(node, last)
        node._del(last)
        return self

    def set_(self, key: NestedKey, item: Any, *, non_blocking: bool = False) -> Self:
        """Copy a value into the memory of the one that is there; return self. Locked tensordicts allow it.

        Args:
            key: a key that exists.
            item: a value that broadcasts to the shape of the one that is there.
            non_blocking: copy without waiting.

        Raises:
            KeyError: if there is no such key.
            RuntimeError: if the shapes do not fit.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.zeros(2)}, [2], lock=True)
            >>> td.set_("x", torch.ones(2))["x"]
            tensor([1., 1.])
        """
        with _named(key):
            node, plan, value = self._beside(key, item)
            node._write(plan, value)
        return self

    def _beside(self, key: NestedKey, item: Any) -> tuple[Any, indexing.Plan, Any]:
        """Return the node that has a key, the plan of all its rows, and a value for the key as a node like it."""
        node, last = self._holder(key)
        _require(node, last)
        return node, node._plan(()), node._dense_kind({last: item}, node._meta.batch)

    def set_at_(self, key: NestedKey, value: Any, index: Any, *, non_blocking: bool = False) -> Self:
        """Copy a value into rows of the one that is there, those that `get_at` reads; return self.

        Args:
            key: a key that exists.
            value: what is written; it broadcasts to the rows.
            index: what the value is indexed with; it may go beyond the batch dims.
            non_blocking: copy without waiting.

        Raises:
            KeyError: if there is no such key.
            IndexError: if the value has no such rows.
            RuntimeError: if the shapes do not fit.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(3)}, [3]).set_at_("x", 1.0, 1)["x"]
            tensor([0., 1., 0.])
        """
        holder, last = self._holder(key)
        _require(holder, last)
        with _named(key):
            holder._write_at(last, value, index)
        return self

    def _holder(self, key: NestedKey) -> tuple[Any, str]:
        """Return the node that a nested key leads to, and the last part of the key."""
        *path, last = unravel_key_to_tuple(key)
        node: Any = self
        for part in path:
            node = enter(node, part)
        return node, last

    def _read_at(self, key: str, index: Any) -> Any:
        return self._found(key)[index]

    def _shape_at(self, key: str, differs: Callable[[Any], int] = max) -> tuple[int, ...]:
        """Return the shape of a value without reading it; `differs` says what sizes that are not shared become."""
        return coerce.shape_of(self._look(key))

    def _write_at(self, key: str, value: Any, index: Any) -> None:
        """Write to rows of a value: by my own index where it says the same to the value, else to the whole value."""
        child: Any = self._look(key)
        if isinstance(child, Core) and child._is_unbatched:
            whole = child._given().clone()
            whole[index] = value
            self.set_(key, whole)
        elif isinstance(child, Core) and not child._is_non_tensor:
            if isinstance(value, (Core, Mapping)):
                child.update_at_(value, index)  # type: ignore[attr-defined]
            else:
                child[index] = value  # type: ignore[index]
        elif isinstance(child, Tensor) and not child.is_nested and _goes_beyond(index, len(self._meta.batch)):
            whole = self._dense_kind({key: self._get(key).clone()}, self._meta.batch)
            whole._write_at(key, value, index)
            self._write(indexing.plan((), self._meta.batch), whole)
        else:
            _update_rows(self, index, {key: value}, {})

    def setdefault(self, key: NestedKey, default: Any, inplace: bool = False) -> Any:
        """Return the value of a key, after setting it to a default if there is none.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"a": 1}).setdefault("b", 2)
            tensor(2)
        """
        if key not in self:
            self.set(key, default, inplace=inplace)
        return self.get(key)

    def pop(self, key: NestedKey, default: Any = NO_DEFAULT) -> Any:
        """Remove a key and return its value as `get` does, non-tensors as nodes, or a default when there is none.

        Raises:
            KeyError: if there is no such key and no default.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"a": 1}).pop("a")
            tensor(1)
        """
        if default is not NO_DEFAULT and key not in self:
            return default
        value = self._found(key)
        self.del_(key)
        return value

    def update(
        self,
        input_dict_or_td: Any = None,
        clone: bool = False,
        inplace: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[NestedKey] | None = None,
        is_leaf: IsLeaf | None = None,
        update_batch_size: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Set the values of another mapping, nested ones merged; return self.

        Args:
            input_dict_or_td: a mapping or a tensordict.
            clone: copy the values.
            inplace: copy into the memory of values that are there.
            non_blocking: with ``inplace``, copy without waiting.
            keys_to_update: take these keys only.
            is_leaf: called with the class of a value; one for which it is True replaces what is there, unmerged.
            update_batch_size: take the batch size of a tensordict that brings a value for every key.
            **kwargs: values by key.

        Raises:
            RuntimeError: if the keys are locked; nothing is changed then.

        Examples:
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"a": {"x": 1}}).update({"a": {"y": 2}})
            >>> list(td.keys(True, True))
            [('a', 'x'), ('a', 'y')]
        """
        if update_batch_size:
            _take_batch(self, input_dict_or_td)
        sides = () if kwargs else self._sides(input_dict_or_td)
        if sides:
            self._admit_all(input_dict_or_td, keys_to_update, inplace, is_leaf)
            options: dict[str, Any] = {"non_blocking": non_blocking, "keys_to_update": keys_to_update}
            for mine, theirs in sides:
                mine.update(theirs, clone, inplace, is_leaf=is_leaf, **options)
            return self
        chosen, wanted = _picked(input_dict_or_td, kwargs, keys_to_update)
        if not (inplace or clone) and self._set_leaves(chosen):
            return self
        self._doors(chosen, inplace, is_leaf)
        for key, value in chosen:
            merge = None if isinstance(value, Tensor) else self._merge(key, value, is_leaf)
            if merge is None:
                copied = value.clone() if clone and hasattr(value, "clone") else value
                self.set(key, copied, inplace, non_blocking=non_blocking)
                continue
            below = _below(key, wanted)
            merge.update(value, clone, inplace, non_blocking=non_blocking, keys_to_update=below, is_leaf=is_leaf)
        return self

    def _sides(self, source: Any) -> Sequence[tuple[Any, Any]]:
        """Return each of my parts with its part of a source, where the two have parts that need not be joined."""
        return ()

    def _set_leaves(self, pairs: Iterable[tuple[Any, Any]]) -> bool:
        """Set pairs if all are plain keys and tensors; tell whether it is done. All pass the door before any is set."""
        ready: list[tuple[str, Any]] = []
        for key, value in pairs:
            if type(key) is not str or not isinstance(value, Tensor):
                return False
            ready.append((key, self._door(key, value)))
        if ready:
            self._gate("set key {!r}", ready[0][0])
        for key, child in ready:
            self._set(key, child)
        return True

    def _admit_all(self, source: Any, keys: Sequence[NestedKey] | None, inplace: bool, is_leaf: IsLeaf | None) -> None:
        """Raise, before anything is set, if a value of a source does not pass its door."""
        sides = self._sides(source)
        if not sides:
            self._doors(_picked(source, {}, keys)[0], inplace, is_leaf)
        for mine, theirs in sides:
            mine._admit_all(theirs, keys, inplace, is_leaf)

    def _doors(self, pairs: Iterable[tuple[Any, Any]], inplace: bool, is_leaf: IsLeaf | None = None) -> None:
        for key, value in pairs:
            merge = None if isinstance(value, Tensor) else self._merge(key, value, is_leaf)
            if merge is not None:
                merge._admit_all(value, None, inplace, is_leaf)
                continue
            path = unravel_key_to_tuple(key)
            if inplace and walk.find(self, path) is not None:
                node, plan, item = self._beside(path, value)
                node._admit(plan, item)
            else:
                self._opened(path, value)

    def _merge(self, key: Any, value: Any, is_leaf: IsLeaf | None = None) -> Any:
        """Return the node at a key that a nested mapping is merged into, or None when the value replaces it."""
        if isinstance(key, str) and key in self._keys() and isinstance(value, (Mapping, Core)):
            child = self._look(key)
            if isinstance(child, Core) and not child._is_non_tensor and not (is_leaf and is_leaf(type(value))):
                return self._get(key)
        return None

    def update_(
        self,
        input_dict_or_td: Any = None,
        clone: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[NestedKey] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Copy the values of another mapping into the memory of those that are there; return self.

        Args:
            input_dict_or_td: a mapping or a tensordict whose keys are all there.
            clone: kept for programs that pass it; copying never aliases.
            non_blocking: kept for programs that pass it; the copies are in the order of the device's work in any case.
            keys_to_update: take these keys only.
            **kwargs: values by key.

        Raises:
            KeyError: if a key is missing; nothing is changed then.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2)}, [2]).update_({"x": torch.ones(2)})["x"]
            tensor([1., 1.])
        """
        return _update_rows(self, (), input_dict_or_td, kwargs, keys_to_update)

    def update_at_(
        self,
        input_dict_or_td: Any,
        idx: Any,
        clone: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[NestedKey] | None = None,
    ) -> Self:
        """Copy the values of another mapping into rows of those that are there; return self.

        Args:
            input_dict_or_td: a mapping or a tensordict whose keys are all there.
            idx: the rows that are written.
            clone: kept for programs that pass it; copying never aliases.
            non_blocking: kept for programs that pass it; the copies are in the order of the device's work in any case.
            keys_to_update: take these keys only.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2)}, [2]).update_at_({"x": torch.ones(())}, 1)["x"]
            tensor([0., 1.])
        """
        return _update_rows(self, idx, input_dict_or_td, {}, keys_to_update)

    def copy_at_(self, tensordict: Any, idx: Any, non_blocking: bool = False, *, fast: bool = True) -> Self:
        """Copy the values of another tensordict into rows of mine; return self.

        Args:
            tensordict: a tensordict whose keys are all there.
            idx: the rows that are written.
            non_blocking: copy without waiting.
            fast: kept for programs that pass it.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2)}, [2]).copy_at_(TensorDict({"x": 1.0}), 1)["x"]
            tensor([0., 1.])
        """
        return self.update_at_(tensordict, idx, non_blocking=non_blocking)

    def fill_(self, key: NestedKey, value: float) -> Self:
        """Set every element of a value to a number, in place; return self.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2)}, [2]).fill_("x", 3.0)["x"]
            tensor([3., 3.])
        """
        holder, last = self._holder(key)
        _require(holder, last)
        child = holder._look(last)
        if isinstance(child, Core):
            in_place(child, lambda v: v.fill_(value))
        else:
            holder._write_at(last, value, ())
        return self

    # ---- functions of users

    def apply(
        self,
        fn: Callable[..., Any],
        *others: Any,
        batch_size: SizeLike | None = None,
        device: Any = NO_DEFAULT,
        names: Any = NO_DEFAULT,
        inplace: bool = False,
        default: Any = NO_DEFAULT,
        filter_empty: bool | None = None,
        propagate_lock: bool = False,
        call_on_nested: bool = False,
        is_leaf: IsLeaf | None = None,
        out: Any = None,
        named: bool = False,
        nested_keys: bool = False,
    ) -> Self:
        """Return a tensordict of what a function returns for each leaf.

        Args:
            fn: called with the leaf, and with those of ``others`` at the same key; None leaves the key out.
            *others: tensordicts with the same keys.
            batch_size: that of the result, when the function changes it.
            device: where the result goes.
            names: the names of the batch dims of the result.
            inplace: copy the results into the leaves, of a lazy stack into those of each member, and return self.
            default: stands for the value of a key that one of ``others`` lacks.
            filter_empty: False keeps nested tensordicts for which nothing was returned, True drops empty ones too.
            propagate_lock: lock the result if this tensordict is locked.
            call_on_nested: call the function on nested tensordicts, instead of on what they hold.
            is_leaf: called with the class of a value; tells what the function is called on.
            out: a tensordict that the results are copied to.
            named: pass the key to the function, before the leaf: what `named_apply` does.
            nested_keys: with ``named``, pass the whole nested key instead of its last part.

        Returns:
            The new tensordict, or None when ``filter_empty`` leaves nothing of it.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2)}, [2]).apply(lambda x: x + 1)["x"]
            tensor([1., 1.])
        """
        batch = None if batch_size is None or inplace else as_batch(batch_size)
        leaf = _any_is_leaf if call_on_nested else is_leaf
        visit = walk.Visit(fn, named, nested_keys, default, leaf, inplace, filter_empty, batch)
        result = _applied(self, visit, others, out)
        return _finished(self, result, names, device, propagate_lock)  # type: ignore[no-any-return]

    def named_apply(
        self,
        fn: Callable[..., Any],
        *others: Any,
        nested_keys: bool = False,
        batch_size: SizeLike | None = None,
        device: Any = NO_DEFAULT,
        names: Any = NO_DEFAULT,
        inplace: bool = False,
        default: Any = NO_DEFAULT,
        filter_empty: bool | None = None,
        propagate_lock: bool = False,
        call_on_nested: bool = False,
        is_leaf: IsLeaf | None = None,
        out: Any = None,
    ) -> Self:
        """Return a tensordict of what a function of key and leaf returns.

        Args:
            fn: called with the key and the leaf, and with the leaves of ``others``.
            *others: tensordicts with the same keys.
            nested_keys: pass the whole nested key instead of its last part; other options are those of `apply`.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.zeros(2), "y": torch.ones(2)}, [2])
            >>> list(td.named_apply(lambda key, x: None if key == "x" else x).keys())
            ['y']
        """
        return self.apply(
            fn,
            *others,
            batch_size=batch_size,
            device=device,
            names=names,
            inplace=inplace,
            default=default,
            filter_empty=filter_empty,
            propagate_lock=propagate_lock,
            call_on_nested=call_on_nested,
            is_leaf=is_leaf,
            out=out,
            named=True,
            nested_keys=nested_keys,
        )

    def apply_(self, fn: Callable[..., Any], *others: Any, **options: Any) -> Self:
        """Copy what a function returns for each leaf into the leaf; return self. Arguments as for `apply`.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2)}, [2]).apply_(lambda x: x + 1)["x"]
            tensor([1., 1.])
        """
        self.apply(fn, *others, inplace=True, **options)
        return self

    def _visited(self, visit: walk.Visit, others: tuple[Any, ...], path: tuple[str, ...]) -> Any:
        """Return the node that a visit makes of me, or None when nothing is left."""
        children = visit.children(self, others, path)
        if visit.in_place:
            fresh = {key: value for key, value in children.items() if value is not self._get(key)}
            if fresh:
                batch = self._meta.batch
                self._write(indexing.plan((), batch), self._dense_kind(fresh, written_batch(fresh, batch)))
            return self
        emptied = not children and (visit.filter_empty or (visit.filter_empty is None and self._keys()))
        if emptied:
            return None
        meta = self._meta if visit.batch is None else Meta(visit.batch, self._meta.device)
        return self._like(coerce.children(children, meta), meta)


def _goes_beyond(index: Any, ndim: int) -> bool:
    """Tell whether an index of a value may address more than its batch dims."""
    items = index if isinstance(index, tuple) else (index,)
    if any(item is Ellipsis for item in items):
        return True
    masks = (item for item in items if isinstance(item, Tensor) and item.dtype is torch.bool)
    taken = sum(item is not None and not isinstance(item, bool) for item in items)
    return taken + sum(mask.ndim - 1 for mask in masks) > ndim


def _require(node: Any, key: str) -> None:
    """Raise unless a node has a key, without reading the value."""
    keys = node._keys()
    if key not in keys:
        raise errors.missing_key(key, keys, type(node).__name__)


def enter(node: Any, key: str) -> Any:
    child = node._get(key)
    if not isinstance(child, Core):
        raise errors.MissingKey(f"key {key!r} holds a tensor, not a nested tensordict")
    return child


class _named:
    """Add the nested key to an error that names only its last part."""

    def __init__(self, key: NestedKey) -> None:
        self.key = key

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, errors.ShapeMismatch) and isinstance(self.key, tuple):
            raise errors.ShapeMismatch(f"in {self.key!r}: {error}") from None


def _entries(source: Any) -> list[tuple[Any, Any]]:
    if type(source) is dict:
        return list(source.items())
    if source is None:
        return []
    if isinstance(source, Core):
        return list(source._raw_pairs())
    if isinstance(source, Mapping):
        return list(source.items())
    raise TypeError(f"expected a mapping or a tensordict, got {source!r} of type {type(source).__name__}")


def _picked(
    source: Any, kwargs: dict[str, Any], keys: Sequence[NestedKey] | None
) -> tuple[list[tuple[Any, Any]], list[tuple[str, ...]] | None]:
    """Return the pairs to take, and the paths that are wanted; None when all are."""
    pairs = _entries(source)
    if kwargs:
        pairs += kwargs.items()
    if keys is None:
        return pairs, None
    wanted = [unravel_key_to_tuple(key) for key in keys]
    return [(key, value) for key, value in pairs if _chosen(key, wanted)], wanted


def _below(key: Any, wanted: list[tuple[str, ...]] | None) -> list[Any] | None:
    """Return the wanted paths below a key, or None when all of it is wanted."""
    return ([path[1:] for path in wanted if path[0] == key and len(path) > 1] or None) if wanted else None


def _chosen(key: Any, wanted: list[tuple[str, ...]]) -> bool:
    path = unravel_key_to_tuple(key)
    return any(path[: len(one)] == one[: len(path)] for one in wanted)


def _need_keys(node: Any, other: Any) -> None:
    """Raise unless a node has all the keys of another, nested ones too."""
    present = node._keys()
    for key, child in other._looks():
        if key not in present:
            raise errors.missing_key(key, present, type(node).__name__)
        if type(child) is not Tensor and isinstance(child, Core) and not child._is_non_tensor:
            _need_keys(enter(node, key), child)


def _take_batch(self: Any, source: Any) -> None:
    """Give a node the batch size of a source that brings a value for every key of it, here and in nested nodes."""
    if not isinstance(source, Core):
        return
    mine = list(self._keys())
    if self._meta.batch == source._meta.batch:
        for key in mine:
            child = self._look(key)
            if isinstance(child, Core) and key in source._keys():
                _take_batch(child, source._get(key))
        return
    left = sorted(set(mine) - set(source._keys()))
    if left:
        raise errors.ShapeMismatch(
            f"cannot take the batch size {list(source._meta.batch)} of the source in place of "
            f"{list(self._meta.batch)}: it has no values for the keys {left}"
        )
    self._gate("change the batch size")
    for key in mine:
        self._del(key)
    self._stamp(Meta(source._meta.batch, self._meta.device))


def _update_rows(self: F, index: Any, source: Any, kwargs: dict[str, Any], chosen: Any = None) -> F:
    if type(index) is tuple and not index and not kwargs and chosen is None and self._pour_all(source):
        return self
    plan: Any = self._plan(index)  # type: ignore[attr-defined]
    value: Any = source
    if not isinstance(source, Core):
        entries = {**dict(_entries(source)), **kwargs}
        for key in entries:
            if key not in self:
                raise errors.missing_key(key, self._keys(), type(self).__name__)
            entries[key] = _of_dtype(entries[key], self.get(key))
        value = self._dense_kind(entries, written_batch(entries, plan.batch))
    if chosen is not None:
        value = value.select(*chosen, strict=False)
    _need_keys(self, value)
    self._write(plan, value)
    return self


def _of_dtype(value: Any, leaf: Any) -> Any:
    """Return a number as torch writes it into a leaf; anything else stays what it is."""
    if not isinstance(leaf, Tensor):
        return value
    if isinstance(value, (bool, int, float, complex)):
        return leaf.new_full((), value)
    return in_dtype(value, leaf)


def _any_is_leaf(kind: type) -> bool:
    return True


def _applied(self: Any, visit: walk.Visit, others: tuple[Any, ...], out: Any) -> Any:
    if visit.in_place:
        self._writable()
    result = self._visited(visit, others, ())
    return result if result is None or out is None or visit.in_place else out.update_(result)


def _finished(self: Any, result: Any, names: Any, device: Any, lock: bool) -> Any:
    """Return what a function made of me with names and device as asked, locked if I am and that is asked."""
    if result is None or result is self:
        return result
    if names is not NO_DEFAULT:
        result._give_names(names)
    if device not in (NO_DEFAULT, None):
        result = result.to(device)
    return result.lock_() if lock and self._locked else result
