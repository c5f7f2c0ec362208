"""What travels between processes: results, errors with their traceback, and datasets, as bytes.

    object --split--> head (a pickle) + parts (the memory of its large tensors) --> open

Tensors travel by value, and of a view only the part that it shows. `link` takes the head and the parts across.
"""

from __future__ import annotations

import functools
import io
import pickle
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import get_sharing_strategy

from tensordict.storage.base import flat_bytes

from .link import HAS_BLOCKS, Place

GOOD, BAD = b"+", b"-"
ASIDE = 1 << 16  # bytes; memory of this size is not copied into the pickle, but sent from where it is

Parts = tuple[memoryview, list[memoryview]]


class WorkerError(RuntimeError):
    """A worker died, or it raised something that cannot be rebuilt in the calling process.

    Examples:
        >>> from tensordict import WorkerError
        >>> issubclass(WorkerError, RuntimeError)
        True
    """


class RemoteTraceback(Exception):
    """The cause of an error that a worker raised: its chunk and its traceback, as text."""

    def __str__(self) -> str:
        return str(self.args[0])


def dumps(obj: object, kind: bytes = b"", by_value: bool = False) -> memoryview:
    """Pickle *obj* after the *kind* mark, with every plain CPU tensor as one run of bytes.

    Args:
        obj: what is pickled.
        kind: bytes that stand in front.
        by_value: also pickle what the main module defines, if cloudpickle is installed.

    Example:
        >>> loads(dumps(torch.arange(3)))
        tensor([0, 1, 2])

    Raises:
        Exception: whatever pickle raises for an object that cannot be pickled.
    """
    file = io.BytesIO()
    file.write(kind)
    (_cloud() if by_value else _Pickler)(file, protocol=5).dump(obj)
    return file.getbuffer()


def split(obj: object, kind: bytes = b"") -> Parts:
    """Pickle *obj* as `dumps` does, but leave the memory of large tensors and arrays beside the pickle.

    Example:
        >>> head, parts = split(torch.arange(100_000))
        >>> len(head) < 1000, [part.nbytes for part in parts]
        (True, [800000])
    """
    return _split(_Pickler, obj, kind)


def split_by_value(obj: object) -> Parts:
    """Split for workers that do not know the main module."""
    return _split(_cloud(), obj, b"")


def split_job(obj: object) -> Parts:
    """Pickle what a worker gets at its start: as `split` does, but what lies in shared memory goes as a handle."""
    return _split(_JobPickler, obj, b"")


def split_nearby(obj: object) -> Parts:
    """Pickle for processes of this machine that run already: as `split_job`, but any number of them may open it."""
    return _split(_NearbyPickler, obj, b"")


def shares_by_name() -> bool:
    """Say whether `split_nearby` sends a handle for shared memory, and not a copy."""
    return HAS_BLOCKS and get_sharing_strategy() == "file_descriptor"


def loads(data: bytes | bytearray | memoryview, parts: Sequence[memoryview] = ()) -> Any:
    """Rebuild what `dumps` or `split` wrote.

    Example:
        >>> loads(dumps({"a": 1}))
        {'a': 1}
    """
    return pickle.loads(data, buffers=parts)


def _split(pickler: type[pickle.Pickler], obj: object, kind: bytes) -> Parts:
    file = io.BytesIO()
    file.write(kind)
    parts: list[memoryview] = []

    def in_band(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= ASIDE:
            parts.append(raw)
        return raw.nbytes < ASIDE

    pickler(file, protocol=5, buffer_callback=in_band).dump(obj)
    return file.getbuffer(), parts


def _reduce_plain(obj: object) -> Any:
    """Replace torch's own way to pickle, which writes the whole storage behind a view."""
    if type(obj) is not torch.Tensor or obj.layout != torch.strided or obj.is_nested or obj.is_quantized or obj.is_meta:
        return NotImplemented
    plain = obj.detach().cpu().resolve_conj().resolve_neg().contiguous()
    array: Any = flat_bytes(plain).numpy()
    about = obj.dtype, tuple(obj.shape), obj.device.type, obj.requires_grad
    return _rebuild, (pickle.PickleBuffer(array) if array.size else b"", *about)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: object) -> Any:
        return _reduce_plain(obj)


class _JobPickler(ForkingPickler):
    """Pickles for a process that is being started: it inherits descriptors of shared memory."""

    def __init__(self, file: io.BytesIO, protocol: int, buffer_callback: Callable[[pickle.PickleBuffer], Any]) -> None:
        super().__init__(file, protocol, True, buffer_callback)

    def reducer_override(self, obj: object) -> Any:
        return NotImplemented if isinstance(obj, torch.Tensor) and obj.is_shared() else _reduce_plain(obj)


class _NearbyPickler(_JobPickler):
    """Pickles for processes that run already: they open shared memory by the name of our descriptor."""

    def reducer_override(self, obj: object) -> Any:
        if not isinstance(obj, torch.UntypedStorage) or obj.device.type != "cpu":
            return super().reducer_override(obj)
        if not (obj.is_shared() and obj.nbytes() and shares_by_name()):
            return _storage, (torch.empty(0, dtype=torch.uint8).set_(obj),)  # by value, as a plain tensor
        return _attach, (Place.of(obj._share_fd_cpu_()[0]), obj.nbytes())


def _attach(place: Place, nbytes: int) -> Any:
    with place.opened() as descriptor:
        return torch.UntypedStorage.from_file(f"/proc/self/fd/{descriptor}", True, nbytes)


def _storage(plain: torch.Tensor) -> torch.UntypedStorage:
    return plain.untyped_storage()


@functools.cache
def _cloud() -> type[pickle.Pickler]:
    try:
        import cloudpickle
    except ImportError:
        return _Pickler

    class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: object) -> Any:
            reduced = _reduce_plain(obj)
            return super().reducer_override(obj) if reduced is NotImplemented else reduced

    return ByValue


def _rebuild(
    raw: bytearray | memoryview, dtype: torch.dtype, shape: tuple[int, ...], device: str, requires_grad: bool
) -> torch.Tensor:
    plain = torch.frombuffer(raw, dtype=dtype).view(shape) if raw else torch.empty(shape, dtype=dtype)
    return plain.to(device).requires_grad_(requires_grad)


def answer(call: Callable[[], object], label: Callable[[], str], pack: Callable[[object, bytes], Any] = split) -> Any:
    """Make the call in the worker and *pack* what it returns or raises; *label* names the chunk when that is needed.

    Example:
        >>> open_answer(*answer(lambda: 3, str), str)
        3
    """
    try:
        result = call()
    except Exception as error:
        return fault(error, pack)
    try:
        return pack(result, GOOD)
    except Exception as error:
        told = pickle.PicklingError(f"the result for {label()}, a {type(result).__name__}, cannot be pickled: {error}")
        told.__cause__ = error
        return fault(told, pack)


def open_answer(head: bytes | bytearray | memoryview, parts: Sequence[memoryview], label: Callable[[], str]) -> Any:
    """Return what the worker returned, or raise what it raised with the worker's traceback as the cause.

    Raises:
        Exception: the function's own error, where it can be rebuilt here.
        WorkerError: the error, or the result, cannot be rebuilt here.
    """
    view = memoryview(head)
    try:
        content = loads(view[1:], parts)
    except Exception as error:
        raise WorkerError(f"the result for {label()} cannot be unpickled here: {error!r}") from error
    if view[:1] == GOOD:
        return content
    name, text, packed = content
    cause = RemoteTraceback(f"in a worker, at {label()}:\n\n{text}")
    if packed is None:
        raise WorkerError(f"the function raised {name} at {label()}") from cause
    raise loads(packed) from cause


def fault(error: Exception, pack: Callable[[object, bytes], Any] = split) -> Any:
    """Pack an error: its name, its traceback as text, and itself where a round trip gives it back.

    Example:
        >>> open_answer(*fault(KeyError("x")), str)
        Traceback (most recent call last):
        KeyError: 'x'
    """
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    name = f"{type(error).__name__}: {error}"
    try:
        packed = bytes(dumps(error))
        same = type(loads(packed)) is type(error)
    except Exception:
        same = False
    return pack((name, text, packed if same else None), BAD)
