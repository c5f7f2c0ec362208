"""PersistentTensorDict: a tensordict whose values lie in an HDF5 file or a zarr store."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar, final

import torch
from torch import Tensor

from tensordict import errors
from tensordict.aliases import Batch, DeviceLike, SizeLike
from tensordict.core.core import Core
from tensordict.core.facts import Facts
from tensordict.indexing import Plan, check_rows
from tensordict.kinds.nontensor import NonTensorData, NonTensorStack
from tensordict.kinds.window import Stored
from tensordict.meta import Meta, as_batch
from tensordict.ops.persist import common_batch, opened, stored
from tensordict.ops.store import LOADERS, node_home, open_tree
from tensordict.storage.arrays import Arrays, Slot, Terms, encoding_of, require_plain
from tensordict.storage.base import Record

if TYPE_CHECKING:
    from typing_extensions import Self

_NEW = ("w", "w-", "x", "a")
_MODES = ("r", "r+", *_NEW)


@final
class PersistentTensorDict(Stored):
    """Hold a tensordict in an HDF5 file or a zarr store: values are read when they are asked for, and written through.

    An index gives a window on rows, which reads and writes only those. Words that compute return tensordicts in memory.

    Args:
        batch_size: the batch size; None for that of the file, or none.
        filename: the file, or what zarr takes as a store.
        group: an open group of h5py or zarr, instead of a file name.
        mode: "r", "r+" for reading and writing, "a" to make what is missing, "w" to begin anew, "w-" or "x" if new.
        backend: "h5" or "zarr".
        device: where values go that are read.
        validate_batch_size: check that every dataset has the batch size.
        non_tensor_as_stack: write one value that is set for all rows to each of them.
        allow_pickle: pickle and unpickle objects that JSON cannot hold, which can run code; refused by default.
        **kwargs: options for the file, such as ``swmr=True``, and for the datasets that are made, such as
            ``compression="gzip"`` or ``chunks=(32,)``.

    Raises:
        FileNotFoundError: if there is no such file, in mode "r" or "r+".
        BlockingIOError: if another process has an HDF5 file open for writing.
        RuntimeError: if a dataset does not have the batch size, or not exactly one of filename and group is given.

    Examples:
        >>> import tempfile, torch
        >>> from tensordict import PersistentTensorDict, TensorDict
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     td = PersistentTensorDict(filename=f"{folder}/data.h5", batch_size=[4], mode="w")
        ...     td["x"] = torch.zeros(4)
        ...     td[1:3] = TensorDict({"x": torch.ones(2)}, [2])
        ...     values = td["x"]
        ...     td.close()
        >>> values
        tensor([0., 1., 1., 0.])
    """

    LOCKING: ClassVar[bool | str | None] = None
    """How HDF5 files are locked: what `h5py.File` takes as ``locking``, for files that are opened from now on."""

    _room: Arrays
    _children: dict[str, Any]

    def __init__(
        self,
        *,
        batch_size: SizeLike | None = None,
        filename: Any = None,
        group: Any = None,
        mode: str = "r",
        backend: str = "h5",
        device: DeviceLike = None,
        validate_batch_size: bool = True,
        non_tensor_as_stack: bool = False,
        allow_pickle: bool | None = None,
        **kwargs: Any,
    ) -> None:
        if (filename is None) == (group is None):
            raise RuntimeError(f"give a filename or a group, and not both; got filename={filename!r}, group={group!r}")
        if mode not in _MODES:
            raise ValueError(f"mode must be one of {list(_MODES)}, got {mode!r}")
        place = ""
        if backend == "h5":
            kwargs = {"locking": self.LOCKING, **kwargs} if self.LOCKING is not None else kwargs
            if group is not None:
                group, place = group.file, group.name.strip("/")
        terms = Terms(bool(allow_pickle), _device(device), non_tensor_as_stack)
        room = Arrays(opened(backend, group if filename is None else filename, mode, kwargs), place, terms)
        self._settle(room, None if batch_size is None else as_batch(batch_size))
        if validate_batch_size:
            self._check()
        if mode in _NEW and room.writable:
            self._stamp(self._meta)

    @classmethod
    def _open(cls, room: Arrays) -> Self:
        node = object.__new__(cls)
        node._settle(room, None if _record(room) is not None else common_batch(room))
        node._check()
        return node

    def _settle(self, room: Arrays, batch: Batch | None) -> None:
        record = _record(room)
        names = record.names if record is not None and batch in (None, record.batch) else None
        batch = batch if batch is not None else (record and record.batch) or ()
        self._room, self._children = room, {}
        self._meta = Meta(batch, room.terms.device, names)
        self._home = node_home(room, room.kind)

    def _check(self) -> None:
        """Raise unless every dataset has the batch size; one that grows may have more rows by now."""
        batch = self._meta.batch
        for key, look in self._looks():
            shape = tuple(look.shape)
            longer = isinstance(look, Tensor) and self._room.store.growing and shape[1 : len(batch)] == batch[1:]
            if shape[: len(batch)] != batch and not (longer and shape[:1] >= batch[:1]):
                raise errors.batch_mismatch(key, batch, shape)

    @classmethod
    def from_dict(  # type: ignore[override]
        cls,
        input_dict: Any,
        filename: Any,
        *,
        auto_batch_size: bool = False,
        batch_size: SizeLike | None = None,
        device: DeviceLike = None,
        backend: str = "h5",
        batch_dims: int | None = None,
        allow_pickle: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """Write a mapping or a tensordict to a file, and return it as it lies there.

        Args:
            input_dict: keys to values, or a tensordict, whose batch size is kept.
            filename: the file, or what zarr takes as a store; it is replaced.
            auto_batch_size: find the longest batch size that all values share; so it is for a mapping without one.
            batch_size: the batch size.
            device: where values go that are read.
            backend: "h5" or "zarr".
            batch_dims: with an automatic batch size, at most so many dims.
            allow_pickle: pickle objects that JSON cannot hold; refused by default.
            **kwargs: options for the file and the datasets.

        Raises:
            TypeError: if a value is neither an array of numbers nor what JSON can hold.

        Examples:
            >>> import tempfile, torch
            >>> from tensordict import PersistentTensorDict
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     td = PersistentTensorDict.from_dict({"x": torch.zeros(3, 2), "y": [1, 2, 3]}, f"{folder}/data.h5")
            ...     batch_size = td.batch_size
            ...     td.close()
            >>> batch_size
            torch.Size([3])
        """
        td: Any = input_dict
        if not isinstance(td, Core) or auto_batch_size or batch_size is not None:
            auto = batch_size is None
            td = cls._dense_kind.from_dict(td, auto_batch_size=auto, batch_size=batch_size, batch_dims=batch_dims)
        terms = Terms(bool(allow_pickle), _device(device))
        node: Self = stored(td, backend, filename, terms, kwargs)
        return node

    def close(self) -> None:
        """Close the file; values cannot be read or written any more.

        Examples:
            >>> import tempfile, torch
            >>> from tensordict import TensorDict
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     TensorDict({"x": torch.zeros(3)}, [3]).to_h5(f"{folder}/data.h5").close()
        """
        self._room.store.close()

    def flush(self, *, checksums: bool = True) -> Self:
        """Wait until all that was written to a local file or store is on the disk; return self.

        Args:
            checksums: those of a file or store are its library's own.

        Examples:
            >>> import tempfile, torch
            >>> from tensordict import TensorDict
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     td = TensorDict({"x": torch.zeros(3)}, [3]).to_h5(f"{folder}/data.h5")
            ...     td["x"] = torch.ones(3)
            ...     td.flush().close()
        """
        self._room.store.flush()
        return self

    @property
    def kwargs(self) -> dict[str, Any]:
        """Return the options for the file and the datasets that it was opened with.

        Examples:
            >>> import tempfile, torch
            >>> from tensordict import TensorDict
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     td = TensorDict({"x": torch.zeros(3)}, [3]).to_zarr(f"{folder}/data.zarr", chunks=(2,))
            >>> td.kwargs
            {'chunks': (2,)}
        """
        return self._room.store.options

    def memmap_refresh_(self, *, allow_pickle: bool | None = None) -> Self:
        """See the keys, and the rows of a file that grows, that other processes have added; return self.

        Args:
            allow_pickle: kept for programs that pass it; what was given when the file was opened counts.

        Examples:
            >>> import tempfile, torch
            >>> from tensordict import TensorDict
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     reader = TensorDict({"x": torch.zeros(3)}, [3]).to_zarr(f"{folder}/data.zarr")
            ...     TensorDict.from_zarr(f"{folder}/data.zarr", mode="r+")["y"] = torch.ones(3)
            ...     list(reader.memmap_refresh_().keys())
            ['x', 'y']
        """
        self._room.refresh()
        self._children = {}
        if self._room.store.growing and self._meta.batch:
            slots = [slot for slot in map(self._room.slot, self._keys()) if slot is not None and slot.shape]
            for slot in slots:
                slot.array.refresh()
            rows = [slot.shape[0] for slot in slots]
            rows += [len(child.memmap_refresh_()) for child in self._nodes()]
            self._cap(min(rows, default=0))
        return self

    def _cap(self, rows: int) -> None:
        """Take so many rows, in my nodes too, though some datasets may have more by now."""
        self._meta = Meta((rows, *self._meta.batch[1:]), *self._meta[1:])
        for child in self._nodes():
            if isinstance(child, PersistentTensorDict):
                child._cap(rows)

    def auto_batch_size_(self, batch_dims: int | None = None, keep_compliant_size: bool = False) -> Self:
        batch = self.batch_size = common_batch(self._room)[:batch_dims]
        for child in self._nodes():
            if not (keep_compliant_size and child._meta.batch[: len(batch)] == batch):
                child.auto_batch_size_(batch_dims, keep_compliant_size)
            if child._meta.batch[: len(batch)] != batch:  # it has no leaves that tell
                child._set_batch(batch)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_children": {}}

    # ---- verbs

    def _gate(self, what: str, *about: Any) -> None:
        super()._gate(what, *about)
        self._writable()

    def _door(self, key: str, value: Any) -> Any:
        child = super()._door(key, value)
        self._storable(key, child)
        return child

    def _storable(self, key: str, child: Any) -> None:
        """Raise, before anything is written, if a child cannot be stored."""
        if isinstance(child, Tensor):
            require_plain(key, child)
        elif child._is_non_tensor:
            encoding_of(child._flat(), self._room.terms.allow_pickle)
        else:
            for inner, look in child._looks():
                self._storable(inner, look)

    def _keys(self) -> Collection[str]:
        return self._room.keys().keys()

    def _slot(self, key: str) -> Slot | None:
        try:
            return self._room.slot(key)
        except KeyError:
            raise errors.missing_key(key, self._keys(), type(self).__name__) from None

    def _node(self, key: str) -> Any:
        """Return the node under a key; it is opened once, so that it can be locked."""
        node = self._children.get(key)
        if node is None:
            node, batch = open_tree(self._room.child(key)), self._meta.batch
            if node._meta.batch[: len(batch)] != batch and type(node) is PersistentTensorDict:
                node._meta = node._meta._replace(batch=batch)  # an empty group, which says nothing
                node._check()
            if self._locked:
                node._spread_lock(())
            self._children[key] = node
        return node

    def _nodes(self) -> list[Any]:
        return [self._node(key) for key in self._keys() if self._room.slot(key) is None]

    def _get(self, key: str) -> Any:
        return self._rows(key, ())

    def _rows(self, key: str, items: tuple[Any, ...]) -> Any:
        slot, batch, device = self._slot(key), *self._meta[:2]
        if slot is None:
            node = self._node(key)
            return node[items] if items else node
        if slot.encoding is None:
            leaf = slot.read(items, batch)
            return leaf if device is None else leaf.to(device)
        values, rows = slot.objects(() if slot.whole else items, batch)
        if slot.whole:
            return NonTensorData(values[0], self._plan(items).batch, device)
        return NonTensorStack._of_values(values, 1, device)[rows]

    def _look(self, key: str) -> Any:
        slot = self._slot(key)
        if slot is None:
            return self._node(key)
        if slot.encoding is None:
            return torch.empty(slot.sizes(self._meta.batch), dtype=slot.dtype, device="meta")
        if slot.whole:
            return self._get(key)
        return NonTensorData(None, slot.sizes(self._meta.batch), self._meta.device)  # stands for a column, unread

    def _peek(self, key: str) -> Any:
        slot = self._slot(key)
        return "column" if slot is not None and slot.encoding and not slot.whole else self._look(key)

    def _set(self, key: str, child: Any) -> None:
        if child is self._children.get(key, self):
            return
        if not isinstance(child, Tensor):
            child = child.clone(False)  # what lies in a store itself is read before anything is replaced
            if child._is_non_tensor and self._room.terms.as_stack and child._meta.batch:
                child = child._as_column()
            if key in self._keys():
                self._room.delete(key)
        self._children.pop(key, None)
        if isinstance(child, Tensor):
            self._room.write(key, child)
        else:
            child._place(self._room.child(key), self._room.kind, True)

    def _del(self, key: str) -> None:
        self._children.pop(key, None)
        self._room.delete(key)

    def _write(self, plan: Plan, value: Any) -> None:
        self._writable()
        check_rows(plan, self._meta.batch)
        if not isinstance(value, Core):
            self._pour(plan, value)
            return
        fresh = [key for key in value._keys() if key not in self._keys()]
        if fresh:
            self._gate("write the new key {!r}", fresh[0])
        self._admit(plan, value)
        for key in fresh:
            theirs = value._get(key)
            self._storable(key, theirs)
            self._set(key, theirs.new_zeros(self._meta.batch + tuple(theirs.shape[len(plan.batch) :])))
        for key, theirs in value._raw_pairs():
            self._write_child(key, plan, theirs)

    def _admit(self, plan: Plan, value: Any) -> None:
        super()._admit(plan, value)
        for key, theirs in value._looks() if isinstance(value, Core) else ():
            objects = key in self._keys() and self._look(key)._is_non_tensor if isinstance(theirs, Core) else False
            if objects and not theirs._is_non_tensor:
                raise TypeError(f"cannot write at key {key!r}: expected objects, one a row, got {theirs!r}")

    def _write_child(self, key: str, plan: Plan, theirs: Any) -> None:
        slot = self._slot(key)
        if slot is None:
            self._node(key)._written(plan.items, theirs)
        elif slot.encoding is None:
            slot.write(plan.items, theirs)
        else:
            values = theirs._flat()
            if slot.takes(values):
                slot.write_objects(plan.items, values, torch.arange(len(values)).reshape(theirs.shape))
            else:
                self._set(key, self._get(key)._written(plan.items, theirs))

    def _pour(self, plan: Plan, value: Any) -> None:
        """Write a number or a tensor to rows of every leaf; it means nothing to non-tensors."""
        self._admit(plan, value)
        for key in self._keys():
            slot = self._slot(key)
            if slot is None:
                self._node(key)[plan.items] = value
            elif slot.encoding is None:
                slot.write(plan.items, value)

    def _stamp(self, meta: Meta) -> Self:
        self._meta = meta
        if self._room.writable:
            self._room.meta = Record("dense", meta.batch, None, meta.names)
        return self

    def _set_batch(self, batch: Batch) -> None:
        names = (*self.names, *[None] * len(batch))[: len(batch)]
        self._stamp(Meta(batch, self._meta.device, names if any(names) else None))
        for child in self._nodes():
            if isinstance(child, Facts) and child._meta.batch[: len(batch)] != batch:
                child._set_batch(batch)


def _device(device: DeviceLike) -> torch.device | None:
    return None if device is None else torch.device(device)


def _record(room: Arrays) -> Record | None:
    """Return the record of a group, None for one that was not written as a tensordict."""
    try:
        return room.meta
    except KeyError:
        return None


LOADERS["persistent"] = PersistentTensorDict._open
