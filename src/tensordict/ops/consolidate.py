"""Words for one block: all leaves of a tree side by side in memory, in shared memory, or in one file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from tensordict.aliases import DeviceLike
from tensordict.ops.store import Store, early, open_tree
from tensordict.storage.buffer import is_block
from tensordict.storage.checksum import ChecksumError
from tensordict.storage.consolidated import damage, draft, open_file, write_file
from tensordict.storage.memmap import map_file
from tensordict.storage.memory import allocate_shared, lay, pour
from tensordict.storage.ragged import parts
from tensordict.storage.sketch import Laid, Sketch, arrange, laid

if TYPE_CHECKING:
    from typing_extensions import Self


class Consolidate(Store):
    """Requires: `_place`, `_adopt`. Gives: `consolidate` and its kin."""

    @early
    def consolidate(
        self,
        filename: str | os.PathLike[str] | None = None,
        *,
        num_threads: int = 0,
        device: DeviceLike = None,
        non_blocking: bool = False,
        inplace: bool = False,
        return_early: bool = False,
        use_buffer: bool = False,
        share_memory: bool = False,
        pin_memory: bool = False,
        metadata: bool = False,
        layout: str | None = None,
    ) -> Self:
        """Return a copy whose leaves lie side by side in one block of memory, or in one file; its keys are locked.

        The block is pickled as one run of bytes, sent to another process as one piece, and moved by one copy.

        Args:
            filename: the file to write and map, instead of memory. A file that is there is replaced at once.
            num_threads: kept for programs that pass it.
            device: where the block goes.
            non_blocking: passed to the copy to ``device``.
            inplace: move the leaves of this tensordict there, and return self.
            return_early: with ``num_threads``, return a `concurrent.futures.Future` of the result at once.
            use_buffer: kept for programs that pass it.
            share_memory: put the block in shared memory, so that processes see each other's writes.
            pin_memory: put the block in memory from which devices copy faster.
            metadata: kept for programs that pass it; keys and shapes always come along.
            layout: "rows" stores the leaves of each row side by side, so that a batch of rows is read at once; it
                helps with many small leaves (see ``docs/storage.md``).

        Raises:
            OSError: if there is too little space; the message names the bytes needed.
            ValueError: for a ``filename`` with ``share_memory``, ``pin_memory`` or a ``device`` other than the CPU; for
                another ``layout``, or for rows without a batch dim.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.arange(3), "n": {"y": torch.zeros(3, 2)}}, [3]).consolidate()
            >>> td["x"].untyped_storage() is td["n", "y"].untyped_storage(), td.is_consolidated()
            (True, True)
        """
        sketch = Sketch()
        made = self._place(sketch, "memory", True)
        target = None if device is None else torch.device(device)
        if filename is not None:
            if share_memory or pin_memory or (target is not None and target.type != "cpu"):
                raise ValueError("a file is no shared or pinned memory and lies on the CPU; pass filename alone")
            room, kind = _filed(sketch, os.path.abspath(os.fspath(filename)), layout), "consolidated"
        else:
            home = self._meta.device if target is None else target
            block = _Block(home, share_memory, pin_memory, non_blocking)
            room, kind = block.laid(sketch, layout), "shared" if share_memory else "memory"
        made = made._place(room, kind, True)
        if target is not None and self._meta.device != target:
            made = made.to(target)  # type: ignore[attr-defined]
        if inplace:
            self._adopt(made)
        return (self if inplace else made).lock_()

    def is_consolidated(self) -> bool:
        """Tell whether all leaves lie in one block, put there by `consolidate`, and are all that lies there.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.arange(3)}, [3])
            >>> td.is_consolidated(), td.consolidate().is_consolidated(), td.consolidate()[:2].is_consolidated()
            (False, True, False)
        """
        if _lacks_memory(self):
            return False
        sketch = Sketch()
        self._place(sketch, "memory", True)
        return is_block(list(_owners(sketch)))

    @classmethod
    def from_consolidated(
        cls,
        filename: str | os.PathLike[str],
        *,
        mode: str | None = None,
        allow_pickle: bool | None = None,
        verify: bool = False,
    ) -> Self:
        """Open a file that `consolidate` wrote, here or in the published package, without reading its leaves.

        Args:
            filename: the file.
            mode: "r" refuses writes; "r+" writes through to the file; None is "r+" where the file may be written.
            allow_pickle: load objects that were pickled, which can run code; refused by default.
            verify: read all leaves first, and compare them with the checksums that were saved.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is no such file, is damaged or has the wrong size, or ``mode`` is none of these.
            RuntimeError: if it was written by a newer format, or holds pickled objects and ``allow_pickle`` is not set.

        Examples:
            >>> import os, tempfile, torch
            >>> from tensordict import TensorDict
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = os.path.join(folder, "data")
            ...     _ = TensorDict({"x": torch.arange(3)}, [3]).consolidate(path)
            ...     TensorDict.from_consolidated(path, mode="r")["x"].tolist()
            [0, 1, 2]
        """
        if mode not in (None, "r", "r+"):
            raise ValueError(f"mode must be 'r', 'r+' or None, got {mode!r}")
        path = os.fspath(filename)
        chosen = mode or ("r+" if os.access(path, os.W_OK) else "r")
        room = open_file(path, chosen, allow_pickle=bool(allow_pickle))
        node = open_tree(room)
        if verify and not room.summed:
            raise ChecksumError(f"{path!r} has no checksums, so it cannot be verified; consolidate it again")
        for line in damage(room) if verify else ():
            raise ChecksumError(line)
        return cls._received(node)


def _lacks_memory(child: Any) -> bool:
    """Tell whether a leaf is without memory, on the device "meta"."""
    return bool(child.is_meta if isinstance(child, Tensor) else child._fold(_lacks_memory, any))


def _owners(node: Sketch) -> Iterator[Tensor]:
    """Yield every tensor of a tree that lies in memory of its own: of a nested one, its elements."""
    for child in node.nodes():
        yield from _owners(child)
    for leaf in node.leaves().values():
        yield parts(leaf).values if leaf.is_nested else leaf


def _filed(sketch: Sketch, path: str, layout: str | None) -> Laid:
    plan = draft(sketch, layout)
    write_file(path, plan)
    pieces = lay(plan.slots, map_file(path, plan.nbytes, "r+"))
    return laid(sketch, plan.slots, pieces, kind="consolidated", path=path, mode="r+", layout=layout or "")


class _Block(NamedTuple):
    """One block of memory for the tensors of a tree: on which device, and of what sort."""

    device: torch.device | None
    shared: bool
    pinned: bool
    non_blocking: bool

    def laid(self, sketch: Sketch, layout: str | None) -> Laid:
        """Return the place of a tree in a block that its tensors were copied to."""
        devices = {tensor.device for tensor in sketch.tensors} or {torch.device("cpu")}
        device = self.device or (min(devices, key=str) if len(devices) == 1 else torch.device("cpu"))
        if self.shared and device.type != "cpu":
            raise ValueError(f"shared memory lies on the CPU, got the device {str(device)!r}; pass device='cpu'")
        slots, total = arrange(sketch, layout)
        if device.type != "cpu" and devices != {torch.device("cpu")}:
            pieces = pour(sketch.tensors, slots, torch.UntypedStorage(total, device=device))
            return laid(sketch, slots, pieces, layout=layout or "")
        if self.shared:
            storage = allocate_shared(total)
        else:
            storage = torch.empty(total, dtype=torch.uint8, pin_memory=self.pinned).untyped_storage()
        pieces = pour(sketch.tensors, slots, storage)
        if device.type != "cpu":
            moved = torch.UntypedStorage(total, device=device)
            moved.copy_(storage, non_blocking=self.non_blocking)
            pieces = lay(slots, moved)
        return laid(sketch, slots, pieces, layout=layout or "")
