"""Words that copy a node, or turn it into something else and back: dicts, lists, pickles, autograd."""

from __future__ import annotations

import collections
import copy as copying
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tensordict import dims, errors
from tensordict.aliases import Batch, NestedKey
from tensordict.core import coerce, walk
from tensordict.core.core import Core, S
from tensordict.core.facts import Facts
from tensordict.meta import Meta
from tensordict.ops.ragged import is_nested
from tensordict.ops.rows import register

if TYPE_CHECKING:
    from typing_extensions import Self

    from tensordict.kinds.dense import TensorDict


class Convert(Facts):
    """Requires: `_map`, `_fold`, `_dense`. Gives: copies, autograd words, dicts, automatic batch sizes."""

    # ---- copies

    def clone(self, recurse: bool = True, *, memory_format: torch.memory_format = torch.preserve_format) -> Self:
        """Return a copy: of the leaves too, or with ``recurse=False`` of the structure only.

        Args:
            recurse: copy the leaves.
            memory_format: of the copied leaves, as `torch.clone` takes it.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.zeros(2)}, [2])
            >>> td.clone(False)["x"] is td["x"], td.clone()["x"] is td["x"]
            (True, False)
        """
        if recurse and memory_format is torch.preserve_format:
            return self._map(lambda v: v.clone(), torch._foreach_clone)
        if recurse:
            return self._map(lambda v: v.clone(memory_format=memory_format))
        return self._map(lambda v: v if isinstance(v, Tensor) else v.clone(False))

    def copy(self) -> Self:
        """Return a copy of the structure; the leaves are the same.

        Examples:
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": 1})
            >>> td.copy().set("y", 2).keys() == td.keys()
            False
        """
        return self.clone(False)

    def __copy__(self) -> Self:
        return self.clone(False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # torch cannot copy a strided nested tensor deeply
        result = self._map(lambda v: v.detach().clone() if is_nested(v) else copying.deepcopy(v, memo))
        memo[id(self)] = result
        return result.lock_() if self._locked else result

    def contiguous(self, *, canonical: bool = False, inplace: bool = False) -> Self:
        """Return a dense tensordict whose leaves are contiguous in memory.

        Args:
            canonical: copy a leaf too that is contiguous only because sizes of one hide its strides.
            inplace: put the leaves in the place of the old ones, and return self.

        Raises:
            RuntimeError: if members of a lazy stack have different shapes; the message names the key.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict, lazy_stack
            >>> type(lazy_stack([TensorDict({"x": 1}), TensorDict({"x": 2})]).contiguous()).__name__
            'TensorDict'
        """
        if inplace:
            self._gate("replace leaves")
            return replaced(self, _canonical if canonical else Tensor.contiguous)
        dense: Self = self._dense()
        if canonical:
            return dense._map(lambda v: _canonical(v) if isinstance(v, Tensor) else v.contiguous(canonical=True))
        return dense._map(lambda v: v.contiguous())

    def is_contiguous(self) -> bool:
        """Tell whether all leaves are contiguous in memory.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2, 3).t()}, [3]).is_contiguous()
            False
        """
        return bool(self._fold(lambda v: v.is_contiguous(), all))

    def copy_(self, tensordict: Any, non_blocking: bool = False) -> Self:
        """Copy the values of another tensordict into the memory of mine; return self.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.zeros(2)}, [2])
            >>> td.copy_(td + 1)["x"]
            tensor([1., 1.])
        """
        return self.update_(tensordict)  # type: ignore[attr-defined,no-any-return]

    # ---- autograd

    def detach(self) -> Self:
        """Return the same leaves, cut from the graph.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2, requires_grad=True)}, [2]).detach().requires_grad
            False
        """
        return self._map(lambda v: v.detach())

    def detach_(self) -> Self:
        """Cut the leaves from the graph, in place; return self.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2, requires_grad=True) + 1}, [2]).detach_().requires_grad
            False
        """
        return self._each(lambda v: v.detach_())

    @property
    def data(self) -> Self:
        """Return the same leaves, as `torch.Tensor.data` gives them.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2, requires_grad=True)}, [2]).data.requires_grad
            False
        """
        return self._map(lambda v: v.data if isinstance(v, Tensor) else v._map(lambda w: w.detach()))

    @property
    def requires_grad(self) -> bool:
        """Tell whether any leaf requires a gradient.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2, requires_grad=True)}, [2]).requires_grad
            True
        """
        return bool(self._fold(lambda v: v.requires_grad, any))

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Say whether all leaves require a gradient; return self.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2)}, [2]).requires_grad_()["x"].requires_grad
            True
        """
        return self._each(lambda v: v.requires_grad_(requires_grad))

    @property
    def dtype(self) -> torch.dtype | None:
        """Return the dtype that all leaves share, or None.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": 1, "y": 2}).dtype
            torch.int64
        """
        found = {leaf.dtype for leaf in walk.leaves(self)}
        return found.pop() if len(found) == 1 else None

    def param_count(self, *, count_duplicates: bool = True) -> int:
        """Return the number of elements of all leaves.

        Args:
            count_duplicates: False counts a leaf that is there twice once.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2, 3)}).param_count()
            6
        """
        return sum(leaf.numel() for leaf in _leaves(self, count_duplicates))

    def data_ptr(self, *, storage: bool = False) -> Self:
        """Return the address of each leaf, in a tensordict of the same structure.

        Args:
            storage: of the memory that it is a view of.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> x = torch.zeros(2)
            >>> int(TensorDict({"x": x}).data_ptr()["x"]) == x.data_ptr()
            True
        """

        def address(v: Tensor) -> Tensor:
            return torch.tensor(v.untyped_storage().data_ptr() if storage else v.data_ptr())

        return self.apply(address, batch_size=[])  # type: ignore[attr-defined,no-any-return]

    def as_tensor(self) -> Self:
        """Return the same leaves as plain tensors, where they are memory-mapped ones.

        Examples:
            >>> from tensordict import TensorDict
            >>> type(TensorDict({"x": 1}).memmap_().as_tensor()["x"]).__name__
            'Tensor'
        """
        return self._map(lambda v: v if isinstance(v, Tensor) else v.as_tensor())

    def bytes(self, *, count_duplicates: bool = True) -> int:
        """Return how many bytes the leaves take; memory that leaves share counts for each.

        Args:
            count_duplicates: False counts a leaf that is there twice once.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2)}, [2]).bytes()
            8
        """
        return sum(leaf.nbytes for leaf in _leaves(self, count_duplicates))

    @property
    def grad(self) -> Self | None:
        """Return the gradients of the leaves, or None when no leaf has one.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.ones(2, requires_grad=True)}, [2])
            >>> (td * 3).sum(reduce=True).backward()
            >>> td.grad["x"]
            tensor([3., 3.])
        """
        return self.apply(lambda v: v.grad, filter_empty=True)  # type: ignore[attr-defined,no-any-return]

    def zero_grad(self, set_to_none: bool = True) -> Self:
        """Forget the gradients of the leaves; return self.

        Args:
            set_to_none: False sets them to zero instead.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.ones(2, requires_grad=True)}, [2]).zero_grad().grad
        """
        for leaf in self.values(True, True):  # type: ignore[attr-defined]
            if set_to_none:
                leaf.grad = None
            elif leaf.grad is not None:
                leaf.grad.zero_()
        return self

    def backward(
        self,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Compute the gradients of all leaves with respect to what they were made of.

        Args:
            gradient: a tensordict with the gradient of each leaf; None for leaves of one element.
            retain_graph: keep the graph for another call.
            create_graph: make a graph of the gradients too.
            inputs: the tensors, or the tensordict of tensors, to compute gradients for.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> x = torch.ones(2, requires_grad=True)
            >>> TensorDict({"x": x}, [2]).sum().backward()
            >>> x.grad
            tensor([1., 1.])
        """
        leaves = list(self.values(True, True))  # type: ignore[attr-defined]
        grads = None if gradient is None else [gradient.get(key) for key in self.keys(True, True)]  # type: ignore[attr-defined]
        wanted = list(inputs.values(True, True)) if isinstance(inputs, Convert) else inputs  # type: ignore[attr-defined]
        torch.autograd.backward(leaves, grads, retain_graph, create_graph, inputs=wanted)

    def clear_refs_for_compile_(self) -> Self:
        """Forget the tensordict that this one was made from, here and in nested ones; return self.

        Only a ``with`` block right after the word that made it needs that; a locked tensordict stays locked.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": [1, 2]}, [2]).view(-1).clear_refs_for_compile_().batch_size
            torch.Size([2])
        """
        self._undo = None
        for node in self._nodes():
            node.clear_refs_for_compile_()  # type: ignore[attr-defined]
        return self

    # ---- dicts

    def to_dict(
        self, *, retain_none: bool = True, convert_tensors: bool = False, tolist_first: bool = False
    ) -> dict[str, Any]:
        """Return a dict of tensors and nested dicts; non-tensors are the objects that they hold.

        Args:
            retain_none: False leaves out values that are None.
            convert_tensors: make numbers and lists of tensors.
            tolist_first: a non-tensor that is one value for all rows becomes a list, one value a row.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"a": {"b": 1}, "s": "text"}).to_dict()
            {'a': {'b': tensor(1)}, 's': 'text'}
        """
        found: dict[str, Any] = {}
        for key, child in self._pairs():
            if isinstance(child, Tensor):
                found[key] = child.tolist() if convert_tensors else child
            elif not child._is_non_tensor:
                found[key] = child.to_dict(
                    retain_none=retain_none, convert_tensors=convert_tensors, tolist_first=tolist_first
                )
            elif retain_none or child._given() is not None:
                found[key] = child.tolist() if tolist_first else child.data
        return found

    def numpy(self) -> Any:
        """Return nested dicts of arrays that share memory with the leaves; non-tensors are their objects.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": [1, 2]}, [2]).numpy()
            {'x': array([1, 2])}
        """
        return {key: child.numpy() for key, child in walk.shown_pairs(self)}

    def tolist(
        self,
        *,
        convert_nodes: bool = True,
        convert_tensors: bool = False,
        tolist_first: bool = False,
        as_linked_list: bool = False,
    ) -> Any:
        """Return the rows as (nested) lists of dicts; without batch dims, one dict.

        Args:
            convert_nodes: False leaves each row a tensordict.
            convert_tensors: make numbers and lists of tensors.
            tolist_first: kept for programs that pass it; the rows are told apart first in any case.
            as_linked_list: an item that is set in the list is written to the tensordict too.

        Raises:
            TypeError: for ``convert_tensors`` without ``convert_nodes``.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": [1, 2]}, [2]).tolist(convert_tensors=True)
            [{'x': 1}, {'x': 2}]
        """
        if convert_tensors and not convert_nodes:
            raise TypeError("tolist: convert_tensors=True needs convert_nodes=True")
        if self._meta.batch:
            rows = self.unbind(0)  # type: ignore[attr-defined]
            said = {"convert_nodes": convert_nodes, "convert_tensors": convert_tensors}
            if not as_linked_list:
                return [row.tolist(**said) for row in rows]
            return LinkedList([row.tolist(**said, as_linked_list=True) for row in rows], self)
        if not convert_nodes:
            return self
        found = {}
        for key, child in walk.shown_pairs(self):
            if isinstance(child, Tensor):
                found[key] = child.tolist() if convert_tensors else child
            else:
                found[key] = child.tolist(convert_tensors=convert_tensors)
        return found

    def state_dict(
        self, destination: Any = None, prefix: str = "", keep_vars: bool = False, flatten: bool = True
    ) -> dict[str, Any]:
        """Return the leaves by name, as the `state_dict` of a module does.

        Args:
            destination: a dict to put them in.
            prefix: put before each name.
            keep_vars: keep the graph of the leaves.
            flatten: join nested keys with dots; False keeps nested dicts.

        Examples:
            >>> from tensordict import TensorDict
            >>> dict(TensorDict({"a": {"b": 1}}).state_dict())
            {'a.b': tensor(1)}
        """
        found: dict[str, Any] = collections.OrderedDict() if destination is None else destination
        for key, child in walk.shown_pairs(self):
            name = prefix + key
            if isinstance(child, Tensor):
                found[name] = child if keep_vars else child.detach()
            elif child._is_non_tensor:
                value = child._given()
                found[name] = child.tolist() if child.batch_dims and isinstance(value, list) else value
            elif flatten:
                child.state_dict(found, name + ".", keep_vars)
            else:
                found[name] = child.state_dict(keep_vars=keep_vars, flatten=False)
        return found

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        assign: bool = False,
        from_flatten: bool | None = None,
    ) -> Self:
        """Take the leaves of a `state_dict`, flat or nested; return self.

        Args:
            state_dict: the names and leaves.
            strict: raise if the names are not those of the leaves.
            assign: take the tensors themselves, instead of copying into the leaves.
            from_flatten: kept for programs that pass it; flat and nested names are both read.

        Raises:
            RuntimeError: if ``strict`` and names are missing or unexpected; nothing is changed then.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"a": {"b": torch.zeros(2)}})
            >>> td.load_state_dict({"a.b": torch.ones(2)})["a", "b"]
            tensor([1., 1.])
        """
        mine = {".".join(path): path for path, _ in walk.pairs(self, True, True, walk.is_leaf_nontensor)}
        theirs = _flat_state(state_dict, "")
        missing, extra = sorted(set(mine) - set(theirs)), sorted(set(theirs) - set(mine))
        if strict and (missing or extra):
            raise RuntimeError(f"cannot load this state_dict: missing names {missing}, unexpected names {extra}")
        for name, path in mine.items():
            if name in theirs:
                value = theirs[name]
                if not isinstance(value, Tensor) and not isinstance(walk.find(self, path), Tensor):
                    value = _objects(value, self._meta)
                self.set(path, value, inplace=not assign and isinstance(value, Tensor))  # type: ignore[attr-defined]
        return self

    def to_tensordict(self, *, retain_none: bool | None = None) -> TensorDict:
        """Return a copy made of plain tensordicts only.

        Args:
            retain_none: keep values that are None; by default they are kept.

        Examples:
            >>> from tensordict import TensorDict, lazy_stack
            >>> type(lazy_stack([TensorDict({"x": 1}), TensorDict({"x": 2})]).to_tensordict()).__name__
            'TensorDict'
        """
        node = self._dense_kind({}, self._meta.batch, self._meta.device, self._meta.names)
        for key in self._keys():
            child = self._get(key)
            if isinstance(child, Core) and not child._is_non_tensor:
                node._set(key, child.to_tensordict(retain_none=retain_none))  # type: ignore[attr-defined]
            elif retain_none is not False or isinstance(child, Tensor) or child._given() is not None:
                node._set(key, child.clone())
        return node  # type: ignore[no-any-return]

    def auto_batch_size_(self, batch_dims: int | None = None, keep_compliant_size: bool = False) -> Self:
        """Set the batch size to the longest that all values share, here and in nested tensordicts; return self.

        Args:
            batch_dims: at most so many dims.
            keep_compliant_size: a nested tensordict whose batch size begins with the one found here keeps it.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(3, 4), "y": torch.zeros(3, 4)}).auto_batch_size_().batch_size
            torch.Size([3, 4])
        """
        shapes: list[Batch] = []
        before: dict[str, Batch] = {}
        for key in self._keys():
            try:
                child = self._get(key)
            except errors.ShapeMismatch:  # members of a lazy stack agree in the batch dims only
                shapes.append(self._meta.batch)
                continue
            if isinstance(child, Core):
                if not child._has_rows:
                    continue
                if not child._is_non_tensor:
                    before[key] = child._meta.batch
                    child.auto_batch_size_(batch_dims, keep_compliant_size)  # type: ignore[attr-defined]
            shapes.append(coerce.shape_of(child))
        batch = tuple(itertools.takewhile(lambda size: size >= 0, dims.common(shapes)[:batch_dims]))
        if batch != self._meta.batch:
            self._give_batch(batch)
        for key, own in before.items() if keep_compliant_size else ():
            if own[: len(batch)] == batch:
                self._get(key)._give_batch(own)
        return self

    def to_namedtuple(self, dest_cls: Any = None) -> Any:
        """Return a named tuple of the values, nested tensordicts too.

        Args:
            dest_cls: the class of the named tuple; None makes one, which nested tensordicts get in any case.

        Raises:
            ValueError: if there is no ``dest_cls`` and a key is not a name in Python.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"a": {"b": 1}}).to_namedtuple()
            Fields(a=Fields(b=tensor(1)))
        """
        values = {key: getattr(value, "to_namedtuple", lambda v=value: v)() for key, value in self.items()}  # type: ignore[attr-defined]
        kind = collections.namedtuple("Fields", values) if dest_cls is None else dest_cls
        return kind(**values)

    # ---- ragged values of a lazy stack

    def _read_as(self, key: str, **kwargs: Any) -> Any:
        """Return a value joined as asked; only a lazy stack has more than one way."""
        return self._get(key)

    def densify(self, layout: torch.layout = torch.strided) -> Self:
        """Return a dense tensordict; values of different shapes become nested tensors.

        A key of some members of a lazy stack only is kept: rows of the others are empty, or None for an object.

        Args:
            layout: of the nested tensors, `torch.strided` or `torch.jagged`.

        Raises:
            RuntimeError: if only some members have a value without dims beyond the batch, which cannot be empty.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict, lazy_stack
            >>> ragged = lazy_stack([TensorDict({"x": torch.zeros(n)}) for n in (1, 2)])
            >>> ragged.densify(torch.jagged)["x"].is_nested
            True
        """
        source = self._completed(None)
        node: Any = self._like({}, self._meta)
        for key in source._keys():
            try:
                child = source._get(key)
            except errors.ShapeMismatch:
                child = source._read_as(key, as_nested_tensor=True, layout=layout)
            node._set(key, child if isinstance(child, Tensor) or child._is_non_tensor else child.densify(layout))
        return node  # type: ignore[no-any-return]

    def _completed(self, padding: float | None) -> Any:
        """Return me with the same keys in every member, where I have members."""
        return self

    def to_padded_tensor(self, padding: float = 0.0, mask_key: NestedKey | None = None) -> Self:
        """Return a dense tensordict in which values of different shapes are padded to one.

        A key of some members of a lazy stack only is kept: rows of the others are padding, or None for an object.

        Args:
            padding: the number to pad with.
            mask_key: a key that gets a bool tensor of the batch size, True for rows that were not padded.

        Raises:
            RuntimeError: for a ``mask_key`` when no batch dim differs, or if values differ in more than one dim.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict, lazy_stack
            >>> ragged = lazy_stack([TensorDict({"x": torch.ones(n)}, [n]) for n in (1, 2)])
            >>> padded = ragged.to_padded_tensor(mask_key="mask")
            >>> padded["x"].tolist(), padded["mask"].tolist()
            ([[1.0, 0.0], [1.0, 1.0]], [[True, False], [True, True]])
        """
        ragged = -1 in self._meta.batch
        if mask_key is not None and not ragged:
            raise RuntimeError(f"mask_key={mask_key!r} is for batch dims that differ, got {list(self._meta.batch)}")
        source = self._completed(padding)
        values = {key: source._padded_value(key, padding) for key in source._keys()}
        batch: Batch = self._meta.batch
        if ragged:
            flags = self._map(lambda row: row._dense_kind({"flag": torch.ones(row.batch_size, dtype=torch.bool)}))
            mask = flags._read_as("flag", as_padded_tensor=True, padding_value=False)
            batch = tuple(mask.shape)
        node: Any = self._like(values, Meta(batch, self._meta.device, self._meta.names))
        return node if mask_key is None else node.set(mask_key, mask)  # type: ignore[no-any-return]

    def _padded_value(self, key: str, padding: float) -> Any:
        try:
            child = self._get(key)
        except errors.ShapeMismatch:
            return self._read_as(key, as_padded_tensor=True, padding_value=padding)
        if not isinstance(child, Tensor):
            return child if child._is_non_tensor else child.to_padded_tensor(padding)
        return torch.nested.to_padded_tensor(child, padding) if child.is_nested else child

    # ---- numbers of leaves and equality of structure

    @property
    def depth(self) -> int:
        """Return how deep tensordicts are nested; zero when there are only leaves.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"a": {"b": {"c": 1}}}).depth
            2
        """
        return max((len(at) - 1 for _, at in walk.places(self, (True, False, walk.default_is_leaf), (), [])), default=0)


class LinkedList(list[Any]):
    """Hold the rows of a tensordict; a row that is set here is written there too.

    Args:
        rows: the rows.
        node: the tensordict.

    Raises:
        TypeError: if more than one row is set at once, or their number would change.

    Examples:
        >>> from tensordict import TensorDict
        >>> td = TensorDict({"x": [1, 2]}, [2])
        >>> rows = td.tolist(as_linked_list=True)
        >>> rows[0] = {"x": 5}
        >>> td["x"]
        tensor([5, 2])
    """

    def __init__(self, rows: Iterable[Any], node: Any) -> None:
        super().__init__(rows)
        self._node = node

    def __setitem__(self, index: Any, value: Any) -> None:
        if not isinstance(index, int):
            raise TypeError(f"set one row of a linked list at a time, got the index {index!r}")
        self._node[index] = value
        super().__setitem__(index, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def _fixed(self, *_: Any) -> Any:
        raise TypeError("a linked list keeps the rows of its tensordict, in their order; `tolist` gives a free one")

    append = extend = insert = remove = pop = clear = sort = reverse = _fixed  # type: ignore[assignment]
    __delitem__ = __iadd__ = __imul__ = _fixed

    def tolist(self) -> list[Any]:
        """Return the rows as plain lists.

        Examples:
            >>> from tensordict import TensorDict
            >>> type(TensorDict({"x": [1]}, [1]).tolist(as_linked_list=True).tolist())
            <class 'list'>
        """
        return [row.tolist() if isinstance(row, LinkedList) else row for row in self]


def _leaves(node: Any, count_duplicates: bool) -> list[Tensor]:
    leaves = walk.leaves(node)
    return leaves if count_duplicates else list({id(leaf): leaf for leaf in leaves}.values())


def _canonical(leaf: Tensor) -> Tensor:
    """Return a leaf with the strides that a new tensor of its shape has."""
    usual = torch.empty(leaf.shape, device="meta").stride()
    return leaf if leaf.stride() == usual else leaf.clone(memory_format=torch.contiguous_format).view(leaf.shape)


def replaced(self: S, call: Callable[[Any], Any]) -> S:
    """Put what a call returns in the place of each leaf."""
    for key in self._keys():
        child = self._get(key)
        if isinstance(child, Core):
            replaced(child, call)
        else:
            self._set(key, call(child))
    return self


def _objects(value: Any, meta: Meta) -> Any:
    """Return what a `state_dict` has of a non-tensor: a list of one object for each row, or one object for all."""
    rows = isinstance(value, list) and len(meta.batch) and len(value) == meta.batch[0]
    return Core._non_tensor_kind._of_list(value, meta) if rows else coerce.non_tensor(value, meta)


def _flat_state(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return a nested state dict with names joined by dots."""
    found: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, Mapping):
            found |= _flat_state(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


register("clone", "detach")


def completed(members: Sequence[Any], padding: float | None) -> list[Any]:
    """Return members that have all keys of each other: empty values, or the padding where nothing can be empty."""
    members = [member._completed(padding) for member in members]
    models: dict[str, tuple[Any, tuple[int, ...]]] = {}
    for member in members:
        for key in member._keys():
            models.setdefault(key, (member._look(key), member._shape_at(key)))
    return [_with_all(member, models, padding) for member in members]


def _with_all(member: Any, models: dict[str, tuple[Any, tuple[int, ...]]], padding: float | None) -> Any:
    missing = [key for key in models if key not in member._keys()]
    if not missing:
        return member
    made = member.clone(False)
    for key in missing:
        made._set(key, _nothing(key, *models[key], made._meta.batch, padding))
    return made


def _nothing(key: str, like: Any, shape: Sequence[int], batch: Batch, padding: float | None) -> Any:
    """Return what stands for a value that a member does not have."""
    if not isinstance(like, Tensor):
        return like._non_tensor_kind(None, batch) if like._is_non_tensor else like._dense_kind({}, batch)
    if len(shape) > len(batch):
        return like.new_empty((*batch, 0, *shape[len(batch) + 1 :]))
    if padding is None:
        raise errors.ShapeMismatch(
            f"cannot densify: only some members have the key {key!r}, and its values of shape {list(shape)} have "
            f"no dim that could be empty for the others. to_padded_tensor() pads them."
        )
    return like.new_full(batch, padding)
