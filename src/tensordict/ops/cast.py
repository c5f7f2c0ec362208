"""Words that change the dtype or the device of the leaves."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from tensordict.aliases import Call, DeviceLike
from tensordict.core.core import Core
from tensordict.core.facts import Facts
from tensordict.keys import unravel_key_to_tuple
from tensordict.meta import Meta
from tensordict.ops.convert import replaced
from tensordict.ops.rows import CastRow, ask, dress

if TYPE_CHECKING:
    from typing_extensions import Self


def _cast(name: str, dtype: torch.dtype) -> CastRow:
    """Return a word that casts every leaf to a dtype."""
    say: Any = ask(name) if hasattr(Tensor, name) else (lambda v: v.type(dtype))

    def word(self: Core, *, cast_filter: Callable[[Any, Tensor], bool] | None = None) -> Any:
        if cast_filter is None:
            return self._map(say)
        return self.type(dtype, cast_filter=cast_filter)  # type: ignore[attr-defined]

    quantized = str(dtype).startswith("torch.q")
    sentence = (
        "Return the leaves, where torch can make them quantized, as" if quantized else "Return the leaves cast to"
    )
    option, shown = ("cast_filter=lambda key, leaf: False", torch.float32) if quantized else ("", dtype)
    dress(
        word,
        name,
        f"""{sentence} `{dtype}`.

        Args:
            cast_filter: called with key and leaf; a leaf for which it is False stays as it is.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({{"x": torch.ones(2)}}, [2]).{name}({option})["x"].dtype
            {shown}
        """,
    )
    return cast(CastRow, word)


class Cast(Facts):
    """Requires: `_map`, `_stamp`. Gives: `to`, `cpu`, `cuda`, `pin_memory` and the dtype words."""

    bfloat16 = _cast("bfloat16", torch.bfloat16)
    bool = _cast("bool", torch.bool)
    complex32 = _cast("complex32", torch.complex32)
    complex64 = _cast("complex64", torch.complex64)
    complex128 = _cast("complex128", torch.complex128)
    double = _cast("double", torch.float64)
    float = _cast("float", torch.float32)
    float16 = _cast("float16", torch.float16)
    float32 = _cast("float32", torch.float32)
    float64 = _cast("float64", torch.float64)
    half = _cast("half", torch.float16)
    int = _cast("int", torch.int32)
    int8 = _cast("int8", torch.int8)
    int16 = _cast("int16", torch.int16)
    int32 = _cast("int32", torch.int32)
    int64 = _cast("int64", torch.int64)
    long = _cast("long", torch.int64)
    qint8 = _cast("qint8", torch.qint8)
    qint32 = _cast("qint32", torch.qint32)
    quint8 = _cast("quint8", torch.quint8)
    quint4x2 = _cast("quint4x2", torch.quint4x2)
    uint8 = _cast("uint8", torch.uint8)
    uint16 = _cast("uint16", torch.uint16)
    uint32 = _cast("uint32", torch.uint32)
    uint64 = _cast("uint64", torch.uint64)

    def type(self, dst_type: torch.dtype, *, cast_filter: Callable[[Any, Tensor], Any] | None = None) -> Self:
        """Return the leaves cast to a dtype.

        Args:
            dst_type: the dtype.
            cast_filter: called with key and leaf; a leaf for which it is False stays as it is.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.ones(2)}, [2]).type(torch.int64)["x"]
            tensor([1, 1])
        """
        if cast_filter is None:
            return self._map(lambda v: v.type(dst_type))
        keep = cast_filter
        return self.named_apply(  # type: ignore[attr-defined,no-any-return]
            lambda key, v: v.to(dst_type) if keep(key, v) else v, nested_keys=True
        )

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Return the leaves moved to a device, cast to a dtype, or both.

        Args:
            device: a `torch.device`, its name, or another tensordict, whose device is taken. What `attrs` returns
                moves and casts each leaf by itself; leaves that it does not name stay as they are.
            dtype: a `torch.dtype`.
            other: a tensor whose device and dtype are taken.
            non_blocking: copy without waiting; from pinned memory the copy to a GPU then overlaps with other work.
            non_blocking_pin: pin each leaf on the calling thread first, then copy it without waiting.
            batch_size: a new batch size for the result.

        Returns:
            The moved tensordict; this one itself when it is on the device already and nothing else is asked.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.ones(2)}, [2]).to("cpu", torch.float64)
            >>> td.device, td["x"].dtype
            (device(type='cpu'), torch.float64)
        """
        if args and isinstance(args[0], Cast) and (targets := args[0]._targets()):
            return self._aimed(targets, kwargs)
        move = _Move(*args, **kwargs)
        if move.stays(self._meta.device):
            return self
        moved = self._moved(move) if move.moves else self
        if move.batch_size is not None:
            moved = moved.clone(False) if moved is self else moved  # type: ignore[attr-defined]
            moved._give_batch(move.batch_size)
        return moved

    def _moved(self, move: Any) -> Self:
        """Return me moved; never me or my nodes themselves, for a parent that gets a device of its own."""
        moved = self._map(move.call())
        if move.device is not None:
            moved._stamp(Meta(moved._meta.batch, move.device, moved._meta.names))
        return moved

    def _targets(self) -> dict[tuple[str, ...], dict[str, Any]]:
        """Return the device and dtype that each `TensorAttrs` among my children asks for, by path."""
        return {
            (key, *path): asked
            for key, child in self._looks()
            if isinstance(child, Cast)
            for path, asked in child._targets().items()
        }

    def _aimed(self, targets: dict[tuple[str, ...], dict[str, Any]], kwargs: dict[str, Any]) -> Self:
        """Return my leaves moved and cast one by one; the device is free when they are asked to leave it."""
        device = self._meta.device
        leaves = any(asked.get("device", device) != device for asked in targets.values())

        def call(key: Any, v: Tensor) -> Tensor:
            asked = targets.get(unravel_key_to_tuple(key), targets.get((), {}))
            return v.to(**asked, **kwargs) if asked else v

        free: Any = self.clone(False).clear_device_() if leaves else self  # type: ignore[attr-defined]
        return free.named_apply(call, nested_keys=True)  # type: ignore[no-any-return]

    def attrs(
        self, *, fields: Sequence[str] = ("device", "dtype", "shape"), num_threads: builtins.int | None = None
    ) -> Self:
        """Return for each leaf a `TensorAttrs` that says where and what it is; `to` takes them to make others alike.

        Args:
            fields: what to tell: "device", "dtype" and "shape", or some of them.
            num_threads: kept for programs that pass it.

        Raises:
            ValueError: for another field.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> like = TensorDict({"x": torch.zeros(2), "n": torch.zeros(2, dtype=torch.int8)}, [2]).attrs()
            >>> like["n"].tgt_shape
            torch.Size([2])
            >>> TensorDict({"n": torch.ones(3)}, [3]).to(like)["n"].dtype
            torch.int8
        """
        unknown = sorted(set(fields) - {"device", "dtype", "shape"})
        if unknown:
            raise ValueError(f"attrs tells 'device', 'dtype' and 'shape' of leaves, got the fields {unknown}")

        def call(v: Any) -> Any:
            if isinstance(v, Cast):
                return v.attrs(fields=fields)
            return self._attrs_kind(**{f"tgt_{name}": getattr(v, name) for name in fields})

        if self._is_non_tensor:
            return self
        made: Self = self._dense()._reduce(call, ())
        return made._stamp(made._meta._replace(device=None))

    def cpu(self, **kwargs: Any) -> Self:
        """Return the leaves in the memory of the CPU.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": 1}).cpu().device
            device(type='cpu')
        """
        return self.to("cpu", **kwargs)

    def cuda(self, device: DeviceLike = None, **kwargs: Any) -> Self:
        """Return the leaves on a CUDA device, the current one by default.

        Args:
            device: a device or the number of one.
            **kwargs: passed to `to`.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": 1})
            >>> moved = td.cuda() if torch.cuda.is_available() else td
        """
        return self.to(torch.device("cuda" if device is None else device), **kwargs)

    def pin_memory(self, num_threads: builtins.int | None = None, inplace: builtins.bool = False) -> Self:
        """Return the leaves in page-locked memory, from which copies to a GPU need not wait.

        Args:
            num_threads: kept for programs that pass it.
            inplace: put the leaves in the place of the old ones, and return self.

        Raises:
            RuntimeError: if there is no accelerator.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": 1})
            >>> pinned = td.pin_memory() if torch.cuda.is_available() else td
        """
        return self.pin_memory_() if inplace else self._map(lambda v: v.pin_memory())

    def pin_memory_(self, num_threads: builtins.int = 0) -> Self:
        """Move the leaves to page-locked memory; return self.

        Args:
            num_threads: kept for programs that pass it.

        Raises:
            RuntimeError: if there is no accelerator.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": 1})
            >>> same = td.pin_memory_() if torch.cuda.is_available() else td
        """
        return replaced(self, lambda v: v.pin_memory())

    def auto_device_(self) -> Self:
        """Set the device to the one that all leaves are on, or to None; return self.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": 1}).auto_device_().device
            device(type='cpu')
        """
        found = {leaf.device for leaf in self.values(True, True)}  # type: ignore[attr-defined]
        return self._stamp(self._meta._replace(device=found.pop() if len(found) == 1 else None))

    def clear_device_(self) -> Self:
        """Set the device to None, here and in nested tensordicts; leaves stay where they are; return self.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": 1}, device="cpu").clear_device_().device
        """
        for key in self._keys():
            child = self._look(key)
            if isinstance(child, Cast):
                child.clear_device_()
        return self._stamp(self._meta._replace(device=None))

    @property
    def is_cpu(self) -> builtins.bool:
        """Tell whether all leaves are on the CPU.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": 1}).is_cpu
            True
        """
        return self._fold(lambda v: v.is_cpu, all)  # type: ignore[no-any-return]

    @property
    def is_cuda(self) -> builtins.bool:
        """Tell whether there are leaves, and all are on a CUDA device.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": 1}).is_cuda
            False
        """
        return not self.is_empty() and self._fold(lambda v: v.is_cuda, all)  # type: ignore[attr-defined]

    @property
    def is_meta(self) -> builtins.bool:
        """Tell whether there are leaves, and all are without memory, on the device "meta".

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": 1}).to("meta").is_meta
            True
        """
        return not self.is_empty() and self._fold(lambda v: v.is_meta, all)  # type: ignore[attr-defined]

    def is_floating_point(self) -> builtins.bool:
        """Tell whether all leaves hold floating-point numbers.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": 1.0}).is_floating_point()
            True
        """
        return self._fold(lambda v: v.is_floating_point(), all)  # type: ignore[no-any-return]

    def record_stream(self, stream: Any) -> Self:
        """Mark the leaves as used by a CUDA stream, so that their memory is not reused too early; return self.

        Args:
            stream: the stream.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> if torch.cuda.is_available():
            ...     _ = TensorDict({"x": 1}).cuda().record_stream(torch.cuda.current_stream())
        """
        return self._each(lambda v: v.record_stream(stream))

    def is_pinned(self) -> builtins.bool:
        """Tell whether all leaves are in page-locked memory.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": 1}).is_pinned()
            False
        """
        return self._fold(lambda v: v.is_pinned(), all)  # type: ignore[no-any-return]


class _Move:
    """The arguments of `to`, read as `torch.Tensor.to` reads them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.batch_size = kwargs.pop("batch_size", None)
        self.pin = kwargs.pop("non_blocking_pin", False)
        kwargs.pop("num_threads", None)
        self.device: torch.device | None = None
        self.dtype = kwargs.pop("dtype", None)
        args = (*args, *(kwargs.pop(name) for name in ("other", "device") if kwargs.get(name) is not None))
        kwargs.pop("device", None)
        for at, arg in enumerate(args):
            self._read(at, arg, kwargs)
        if self.pin:
            kwargs["non_blocking"] = True
        self.kwargs = {k: v for k, v in kwargs.items() if v is not None}

    def _read(self, at: int, arg: Any, kwargs: dict[str, Any]) -> None:
        if isinstance(arg, torch.dtype):
            self.dtype = arg
        elif isinstance(arg, Tensor):
            self.device, self.dtype = arg.device, arg.dtype
        elif isinstance(arg, Core):
            self.device = arg._meta.device
        elif isinstance(arg, bool):
            kwargs["non_blocking"] = arg
        elif isinstance(arg, (str, int, torch.device)):
            self.device = _indexed(torch.device(arg))
        elif arg is not None:
            raise TypeError(f"to() got {arg!r} as argument {at}: expected a device, a dtype, a tensor or a tensordict")

    @property
    def moves(self) -> bool:
        return self.device is not None or self.dtype is not None

    def stays(self, device: torch.device | None) -> bool:
        """Tell whether what is on a device stays as it is: then `to` returns it, as torch does."""
        plain = self.dtype is None and self.batch_size is None and self.kwargs.keys() <= {"non_blocking"}
        return plain and device is not None and self.device == device

    def call(self) -> Call:
        """Return what is said to each child; short where only the device is given."""
        device, dtype, more = self.device, self.dtype, self.kwargs
        if device is not None and dtype is None and not more:
            return lambda v: v.to(device) if isinstance(v, Tensor) else v._moved(self)
        if not self.pin or device is None or device.type == "cpu":
            return lambda v: v.to(device=device, dtype=dtype, **more) if isinstance(v, Tensor) else v._moved(self)

        def pinned(v: Any) -> Any:
            if not isinstance(v, Tensor):
                return v._moved(self)
            if v.device.type == "cpu" and not v.is_pinned():
                v = v.pin_memory()
            return v.to(device=device, dtype=dtype, **more)

        return pinned


def _indexed(device: torch.device) -> torch.device:
    """Return a CUDA device with its number, as a moved tensor reports it."""
    if device.type == "cuda" and device.index is None and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return device
