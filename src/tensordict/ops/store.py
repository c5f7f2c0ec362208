"""Words that say where a node lives: copies, shared memory, memory-mapped files."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from tensordict.aliases import DeviceLike, SizeLike
from tensordict.core.facts import Facts
from tensordict.meta import as_batch
from tensordict.storage.archive import write_archive
from tensordict.storage.base import Record
from tensordict.storage.consolidated import draft, open_storage
from tensordict.storage.folder import Folder
from tensordict.storage.memmap import allocate_anonymous, map_file
from tensordict.storage.memory import allocate_shared, lay, pour
from tensordict.storage.sketch import Laid, Sketch, arrange, laid, memory_of

if TYPE_CHECKING:
    from typing_extensions import Self


class NodeHome(NamedTuple):
    """Where the leaves of a node live: "memmap" or "shared", in which folder (None: nowhere by name), in which mode."""

    kind: str
    path: str | None = None
    mode: str | None = None
    layout: str = ""

    def __reduce__(self) -> Any:
        # what a plain pickle of shared memory gives is a copy; processes that are sent a tensordict keep sharing
        return (copied_home, (self.layout,)) if self.kind == "shared" else (NodeHome, tuple(self))


def copied_home(layout: str) -> NodeHome | None:
    return NodeHome("memory", layout=layout) if layout else None


ForkingPickler.register(NodeHome, lambda home: (NodeHome, tuple(home)))


N = TypeVar("N", bound="Store")
F = TypeVar("F", bound=Callable[..., Any])

LOADERS: dict[str, Callable[[Any], Any]] = {}
"""How each kind of node is read back from a folder; the kinds fill it when they are imported."""


def early(word: F) -> F:
    """Let a word run in a thread of its own, and return a future, when it is given num_threads and return_early."""

    @functools.wraps(word)
    def said(*args: Any, **options: Any) -> Any:
        if not (options.get("num_threads") and options.get("return_early")):
            return word(*args, **options)
        pool = ThreadPoolExecutor(1)
        future = pool.submit(word, *args, **options)
        pool.shutdown(wait=False)
        return future

    return said  # type: ignore[return-value]


class Store(Facts):
    """Requires: `_place`, `_adopt`, `_fold`. Gives: shared memory and memory-mapped files."""

    def share_memory_(self) -> Self:
        """Move all leaves to shared memory, in one block, and lock the keys; return self.

        Processes that receive the tensordict see each other's writes.

        Raises:
            OSError: if there is not enough shared memory.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.zeros(2)}, [2]).share_memory_()
            >>> td.is_shared(), td.is_locked
            (True, True)
        """
        return _settle(self, None, "shared")

    def is_shared(self) -> bool:
        """Tell whether the leaves lie in shared memory, put there by `share_memory_`.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": 1}).is_shared()
            False
        """
        return self._home is not None and self._home.kind == "shared"

    def is_memmap(self) -> bool:
        """Tell whether the leaves lie in memory-mapped files.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": 1}).memmap_().is_memmap()
            True
        """
        return self._home is not None and self._home.kind == "memmap"

    @property
    def saved_path(self) -> str:
        """Return the folder that the leaves are mapped from.

        Raises:
            AttributeError: if there is none.

        Examples:
            >>> import tempfile
            >>> from tensordict import TensorDict
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     TensorDict({"x": 1}).memmap(folder).saved_path == folder
            True
        """
        if self._home is None or self._home.path is None:
            raise AttributeError(f"this {type(self).__name__} has no saved path: it was not memory-mapped to a folder")
        return self._home.path  # type: ignore[no-any-return]

    @early
    def memmap_(
        self,
        prefix: str | os.PathLike[str] | None = None,
        copy_existing: bool = False,
        *,
        num_threads: int = 0,
        return_early: bool = False,
        share_non_tensor: bool = False,
        existsok: bool = True,
        robust_key: bool = True,
        atomic: bool = False,
        layout: str | None = None,
    ) -> Self:
        """Move all leaves to memory-mapped files and lock the keys; return self.

        A folder is saved in one step: until all of it is on the disk it holds what it held before, and whoever opens
        it, whenever a process or the machine stops, finds the old tensordict or the new one. Other files in it stay.

        Args:
            prefix: the folder; None for a temporary file that goes when this process drops it.
            copy_existing: kept for programs that pass it; leaves that are mapped elsewhere are always copied.
            num_threads: how many threads copy leaves to files of a folder; 0 for none but this one.
            return_early: with ``num_threads``, save in a thread and return a `concurrent.futures.Future` of the result
                at once; leave the tensordict alone until its ``result()`` is there.
            share_non_tensor: kept for programs that pass it; objects are written to the folder, where other processes
                see them by `memmap_refresh_`.
            existsok: allow a folder that holds a saved tensordict, which is replaced.
            robust_key: kept for programs that pass it; any key is safe.
            atomic: kept for programs that pass it; every save is one step.
            layout: "rows" stores the leaves of each row side by side, in one file, so that a batch of rows is read at
                once; it helps with many small leaves (see ``docs/storage.md``).

        Raises:
            OSError: if there is not enough space; the message names the file.
            FileExistsError: if ``existsok`` is False and the folder holds a saved tensordict.
            ValueError: for another ``layout``, or for rows without a batch dim.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.arange(3)}, [3]).memmap_()
            >>> td["x"]
            MemoryMappedTensor([0, 1, 2])
        """
        return _settle(self, _room(prefix, existsok, num_threads), "memmap", layout)

    @early
    def memmap(
        self,
        prefix: str | os.PathLike[str] | None = None,
        copy_existing: bool = False,
        *,
        num_threads: int = 0,
        return_early: bool = False,
        share_non_tensor: bool = False,
        existsok: bool = True,
        robust_key: bool = True,
        atomic: bool = False,
        layout: str | None = None,
        archive: bool | None = None,
        compression: str | int | None = None,
    ) -> Self:
        """Return a copy whose leaves lie in memory-mapped files; other arguments and errors as for `memmap_`.

        Args:
            archive: write one zip file instead of a folder; by default for a ``prefix`` that ends with ".tdz".
            compression: "deflate", "bzip2" or "lzma" for an archive that is smaller; its leaves cannot be mapped, and
                the result lies in memory.

        Raises:
            ValueError: for an archive without ``prefix`` or with a ``layout``, or another compression.

        Examples:
            >>> import tempfile, torch
            >>> from tensordict import TensorDict
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     _ = TensorDict({"x": torch.arange(3)}, [3]).memmap(folder)
            ...     TensorDict.load_memmap(folder)["x"].tolist()
            [0, 1, 2]
        """
        return _saved(self, prefix, True, _Way(existsok, num_threads, layout, archive, compression))

    save = dumps = memmap

    @early
    def memmap_like(
        self,
        prefix: str | os.PathLike[str] | None = None,
        copy_existing: bool = False,
        *,
        existsok: bool = True,
        num_threads: int = 0,
        return_early: bool = False,
        share_non_tensor: bool = False,
        robust_key: bool = True,
        layout: str | None = None,
        archive: bool | None = None,
    ) -> Self:
        """Return memory-mapped zeros with the keys, shapes and dtypes of this tensordict; arguments as for `memmap`.

        Nothing is built in memory, so an expanded sample preallocates a dataset of any size. Non-tensors are copied.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> sample = TensorDict({"image": torch.ones(3, 8, 8, dtype=torch.uint8)})
            >>> int(sample.expand(1000).memmap_like()["image"].sum())
            0
        """
        return _saved(self, prefix, False, _Way(existsok, num_threads, layout, archive))

    @classmethod
    def from_schema(
        cls,
        schema: Mapping[Any, Any],
        *,
        batch_size: SizeLike | None = None,
        storage: str | None = None,
        device: DeviceLike = None,
        prefix: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Self:
        """Return zeros of given shapes and dtypes, preallocated in memory, shared memory or files.

        Args:
            schema: for each key (strings, tuples, or nested mappings) the pair of the shape of one row and a dtype.
            batch_size: the batch size, which comes before each shape.
            storage: None for memory, "shared" for shared memory, "memmap" for memory-mapped files.
            device: where the zeros are, without ``storage``.
            prefix: with ``storage="memmap"``, the folder; None for a temporary file.
            **options: with ``storage="memmap"``, what else `memmap_like` takes.

        Raises:
            ValueError: for another storage, or an entry that is not a pair of shape and dtype.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict.from_schema({"image": ([3, 8, 8], torch.uint8)}, batch_size=[100])
            >>> td["image"].shape
            torch.Size([100, 3, 8, 8])
        """
        if storage not in _ROOMS:
            raise ValueError(f"storage must be one of {list(_ROOMS)}, got {storage!r}")
        if (prefix is not None or options) and storage != "memmap":
            given = {"prefix": prefix, **options}
            raise ValueError(f"prefix and options are for storage='memmap', got {given!r} with storage={storage!r}")
        outline: Any = cls._received(cls._dense_kind(_outline(schema, as_batch(batch_size)), batch_size))
        if storage is None:
            zeros = outline._map(lambda v: torch.zeros_like(v, device=device or "cpu"))
            return zeros if device is None else zeros.to(device)  # type: ignore[no-any-return]
        if device is not None and torch.device(device).type != "cpu":
            raise ValueError(f"storage={storage!r} lies on the CPU, got device={device!r}")
        if storage == "memmap":
            return outline.memmap_like(prefix, **options)  # type: ignore[no-any-return]
        return _placed(outline, None, storage, fill=False).lock_()  # type: ignore[no-any-return]


CONTENT = "content"
"""The leaf that holds a whole packed tree."""

_ROOMS = (None, "shared", "memmap")


def _outline(schema: Mapping[Any, Any], batch: tuple[int, ...]) -> dict[Any, Any]:
    """Return a schema as tensors without memory."""
    found: dict[Any, Any] = {}
    for key, entry in schema.items():
        if isinstance(entry, Mapping):
            found[key] = _outline(entry, batch)
            continue
        try:
            shape, dtype = entry
            found[key] = torch.empty((*batch, *shape), dtype=dtype, device="meta")
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"schema entry {key!r} must be a pair of the shape of one row and a torch.dtype, got {entry!r}"
            ) from error
    return found


def _room(prefix: str | os.PathLike[str] | None, existsok: bool, threads: int = 0) -> Folder | None:
    """Return the folder that a memory-mapped tree goes to, if that is one."""
    if prefix is None:
        return None
    path = os.path.abspath(os.fspath(prefix))
    _require_replaceable(path, os.path.join(path, "meta.json"), existsok)
    return Folder(path, "w", threads=threads)


def _require_replaceable(path: str, file: str, existsok: bool) -> None:
    if not existsok and os.path.exists(file):
        raise FileExistsError(f"{path!r} holds a saved tensordict already; pass existsok=True to replace it")


class _Way(NamedTuple):
    """How a copy is stored."""

    existsok: bool
    threads: int
    layout: str | None
    archive: bool | None
    compression: str | int | None = None


def _saved(node: N, prefix: str | os.PathLike[str] | None, fill: bool, way: _Way) -> N:
    """Return a locked copy of a node, or zeros like it, in a folder, an archive or a temporary file."""
    if way.archive or (way.archive is None and prefix is not None and os.fspath(prefix).endswith(".tdz")):
        if prefix is None or way.layout is not None:
            raise ValueError(f"an archive is one file: pass its path and no layout, got {prefix!r} and {way.layout!r}")
        path = os.path.abspath(os.fspath(prefix))
        _require_replaceable(path, path, way.existsok)
        return _archived(node, path, way.compression, fill).lock_()
    if way.compression is not None:
        raise ValueError(f"compression={way.compression!r} is for an archive; pass archive=True")
    return _placed(node, _room(prefix, way.existsok, way.threads), "memmap", fill, way.layout).lock_()


def _archived(node: N, path: str, compression: str | int | None, fill: bool) -> N:
    sketch = Sketch()
    made = node._place(sketch, "memory", fill)
    slots = write_archive(path, sketch, compression)
    if slots is None:  # compressed
        return made._place(memory_of(sketch), "memory", True)
    storage = map_file(path, os.stat(path).st_size, "r+")
    return made._place(laid(sketch, slots, lay(slots, storage), kind="archive", path=path, mode="r+"), "memmap", True)


def _placed(node: N, room: Folder | None, kind: str, fill: bool, layout: str | None = None) -> N:
    """Return a copy of a node, or zeros like it, in a folder or, without one, in one block."""
    try:
        sketch = Sketch()
        made = node._place(sketch, "memory", fill)  # over the same leaves; what stored nodes hold is read once
        if room is None:
            return made._place(_block(sketch, kind, layout), kind, True)
        if layout is not None:
            return made._place(_side_by_side(sketch, room, layout), kind, True)
        return made._place(room, kind, fill)
    except BaseException:
        if room is not None:
            room.abandon()
        raise


def _block(sketch: Sketch, kind: str, layout: str | None) -> Laid:
    """Copy a tree to shared memory or a temporary file, and return its place there."""
    slots, total = arrange(sketch, layout)
    storage = (allocate_shared if kind == "shared" else allocate_anonymous)(total)
    pieces = pour(sketch.tensors, slots, storage, sketch.blank)
    return laid(sketch, slots, pieces, block=layout is not None, layout=layout or "")


def _side_by_side(sketch: Sketch, room: Folder, layout: str) -> Laid:
    """Write a tree to one leaf of a folder, and return the place of the tree in it."""
    plan = draft(sketch, layout)
    pieces = plan.fill(room.create(CONTENT, (plan.nbytes,), torch.uint8))
    room.filled(CONTENT)
    room.meta = Record("packed", (), None)
    return laid(sketch, plan.slots, pieces, path=room.path, mode="r+", layout=layout)


def _settle(node: N, room: Folder | None, kind: str, layout: str | None = None) -> N:
    """Move a node to a room in place; when that fails, nothing has changed."""
    if layout is None and _lives(node, kind) and (room is None or room.path == node._home.path):
        return node.lock_()
    _require_movable(node)
    node._adopt(_placed(node, room, kind, fill=True, layout=layout))
    return node.lock_()


def _require_movable(node: Any) -> None:
    """Raise if the values of a node stay where they are, before anything is copied."""
    if not node._moves:
        raise RuntimeError(
            f"the values of a {type(node).__name__} stay where they are; copy them with memmap(), or with "
            f"to_tensordict() and then share_memory_()"
        )
    for child in node._nodes():
        _require_movable(child)


def _lives(node: Any, kind: str) -> bool:
    """Tell whether every leaf of a node lives in such a place already."""
    home = node._home
    return (
        home is not None
        and home.kind == kind
        and all(child._is_non_tensor or _lives(child, kind) for child in node._nodes())
    )


def adopt(mine: Any, placed: Any, shared: bool = False) -> Any:
    """Return what stands where a child stood, of which there is a placed copy: the same node where it can.

    A parameter that is shared stays the one that its module has, as `torch.Tensor.share_memory_` does it.
    """
    if isinstance(placed, torch.Tensor):
        if shared and isinstance(mine, torch.Tensor) and mine.requires_grad and mine.is_leaf and not mine.is_shared():
            mine.data = placed
            return mine
        return placed
    if type(mine) is not type(placed):
        return placed
    mine._adopt(placed)
    return mine


def node_home(room: Any, kind: str) -> NodeHome | None:
    """Return the home of a node that was placed in a room; plain memory is none."""
    if kind == "memory" and not getattr(room, "layout", ""):
        return None
    about = {name: getattr(room, name) for name in ("path", "mode", "layout") if hasattr(room, name)}
    return NodeHome(getattr(room, "kind", kind), **about)


def open_tree(room: Any) -> Any:
    """Return the tree whose root lies in a room; raise ValueError if it is too deep, or its records do not fit."""
    try:
        return open_room(room)
    except RecursionError:
        raise ValueError(f"{room.path!r} holds a tree that is nested too deep to be opened") from None
    except (IndexError, OverflowError) as error:  # a stack along a dim that its members do not have
        raise ValueError(f"{room.path!r} holds records that do not fit each other: {error}") from error


def open_room(room: Any) -> Any:
    """Return the node that lies in a room."""
    kind = room.meta.kind if room.resident or not room.is_plain() else "persistent"
    if kind not in LOADERS:
        raise ValueError(f"{room.path!r} holds a node of the unknown kind {kind!r}")
    return LOADERS[kind](room)


def unpacked(room: Any) -> Any:
    """Return the room of a tree that lies in one leaf of a room."""
    storage = room.read(CONTENT).untyped_storage()
    return open_storage(storage, room.path, room.mode, room.allow_pickle, "memmap")


LOADERS["packed"] = lambda room: open_room(unpacked(room))
