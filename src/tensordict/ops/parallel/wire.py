"""What travels back from a worker: results, and errors with their traceback, as bytes.

Tensors travel by value, and of a view only the part that it shows.
"""

from __future__ import annotations

import io
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import torch

GOOD, BAD, LONG = b"+", b"-", b"#"
PIECE = 1 << 18  # bytes; a pipe reads several pieces faster than one long message (0.35 against 2 ms per MB)


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


def dumps(obj: object, kind: bytes = b"") -> memoryview:
    """Pickle *obj* after the *kind* mark, with every plain CPU tensor as one run of bytes.

    Example:
        >>> loads(dumps(torch.arange(3)))
        tensor([0, 1, 2])

    Raises:
        Exception: whatever pickle raises for an object that cannot be pickled.
    """
    file = io.BytesIO()
    file.write(kind)
    _Pickler(file, protocol=5).dump(obj)
    return file.getbuffer()


def loads(data: bytes | memoryview) -> Any:
    """Rebuild what `dumps` wrote.

    Example:
        >>> loads(dumps({"a": 1}))
        {'a': 1}
    """
    return pickle.loads(data)


class _Pickler(pickle.Pickler):
    """Replaces torch's own way to pickle, which writes the whole storage behind a view."""

    def reducer_override(self, obj: object) -> Any:
        if (
            type(obj) is not torch.Tensor
            or obj.layout != torch.strided
            or obj.is_nested
            or obj.is_quantized
            or obj.is_meta
        ):
            return NotImplemented
        plain = obj.detach().cpu().resolve_conj().resolve_neg().contiguous()
        array: Any = plain.view(-1).view(torch.uint8).numpy()
        about = obj.dtype, tuple(obj.shape), obj.device.type, obj.requires_grad
        return _rebuild, (pickle.PickleBuffer(array) if array.size else b"", *about)


def _rebuild(
    raw: bytearray, dtype: torch.dtype, shape: tuple[int, ...], device: str, requires_grad: bool
) -> torch.Tensor:
    plain = torch.frombuffer(raw, dtype=dtype).view(shape) if raw else torch.empty(shape, dtype=dtype)
    return plain.to(device).requires_grad_(requires_grad)


def answer(call: Callable[[], object], label: Callable[[], str]) -> memoryview:
    """Make the call in the worker and pack what it returns or raises; *label* names the chunk when that is needed.

    Example:
        >>> open_answer(answer(lambda: 3, str), str)
        3
    """
    try:
        result = call()
    except Exception as error:
        return fault(error)
    try:
        return dumps(result, GOOD)
    except Exception as error:
        told = pickle.PicklingError(f"the result for {label()}, a {type(result).__name__}, cannot be pickled: {error}")
        told.__cause__ = error
        return fault(told)


def send(pipe: Any, data: memoryview) -> None:
    """Send *data*, a long one in pieces after its length."""
    if len(data) > PIECE:
        pipe.send_bytes(LONG + len(data).to_bytes(8, "little"))
    for start in range(0, len(data), PIECE):
        pipe.send_bytes(data[start : start + PIECE])


def receive(pipe: Any) -> bytes | bytearray:
    """Receive what `send` sent.

    Raises:
        EOFError: the sender is gone.
    """
    first: bytes = pipe.recv_bytes()
    if first[:1] != LONG:
        return first
    whole, filled = bytearray(int.from_bytes(first[1:], "little")), 0
    while filled < len(whole):
        filled += pipe.recv_bytes_into(whole, filled)
    return whole


def open_answer(data: bytes | bytearray | memoryview, label: Callable[[], str]) -> Any:
    """Return what the worker returned, or raise what it raised with the worker's traceback as the cause.

    Raises:
        Exception: the function's own error, where it can be rebuilt here.
        WorkerError: the error, or the result, cannot be rebuilt here.
    """
    try:
        content = loads(memoryview(data)[1:])
    except Exception as error:
        raise WorkerError(f"the result for {label()} cannot be unpickled here: {error!r}") from error
    if data[:1] == GOOD:
        return content
    name, text, packed = content
    cause = RemoteTraceback(f"in a worker, at {label()}:\n\n{text}")
    if packed is None:
        raise WorkerError(f"the function raised {name} at {label()}") from cause
    raise loads(packed) from cause


def fault(error: Exception) -> memoryview:
    """Pack an error: its name, its traceback as text, and itself where a round trip gives it back.

    Example:
        >>> open_answer(fault(KeyError("x")), str)
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
    return dumps((name, text, packed if same else None), BAD)
