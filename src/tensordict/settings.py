"""Switches that change what a few words do, each a context manager, a decorator and a setter."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class Switch:
    """Set a switch: at once by `set`, for a block by ``with``, or for each call of a function it decorates.

    Args:
        mode: on or off.
    """

    value: ClassVar[bool | None] = None  # None until it is set
    default: ClassVar[bool]

    def __init__(self, mode: bool = True) -> None:
        if not isinstance(mode, bool):
            raise TypeError(f"{type(self).__name__} takes True or False, got {mode!r}")
        self.mode = mode
        self._before: list[bool | None] = []

    @classmethod
    def state(cls, allow_none: bool) -> bool | None:
        """Return the mode that is set; where none is, None if that is allowed, or else the default."""
        return cls.default if cls.value is None and not allow_none else cls.value

    def set(self) -> None:
        """Set the switch until it is set again."""
        type(self).value = self.mode

    def __enter__(self) -> Self:
        self._before.append(self.value)
        self.set()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        type(self).value = self._before.pop()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def decorated(*args: Any, **kwargs: Any) -> Any:
            with type(self)(self.mode):
                return function(*args, **kwargs)

        return decorated


class set_lazy_legacy(Switch):
    """Make `stack` give lazy stacks (off by default).

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict, set_lazy_legacy
        >>> with set_lazy_legacy(True):
        ...     type(torch.stack([TensorDict({"x": 1})])).__name__
        'LazyStackedTensorDict'
    """

    default = False


class set_list_to_stack(Switch):
    """Make a list that is set as a value one value a row (on by default); off, it is one value for all rows.

    Examples:
        >>> from tensordict import TensorDict, set_list_to_stack
        >>> with set_list_to_stack(False):
        ...     TensorDict({"x": ["a", "b"]}, [3])[0]["x"]
        ['a', 'b']
    """

    default = True


class set_capture_non_tensor_stack(Switch):
    """Make a stack of non-tensors that are all the same one value for all rows (off by default).

    Examples:
        >>> import torch
        >>> from tensordict import NonTensorData, set_capture_non_tensor_stack
        >>> with set_capture_non_tensor_stack(True):
        ...     type(torch.stack([NonTensorData("a"), NonTensorData("a")])).__name__
        'NonTensorData'
    """

    default = False


class set_get_defaults_to_none(Switch):
    """Make `get` return None for a missing key (on by default); off, it raises KeyError.

    Examples:
        >>> from tensordict import TensorDict, set_get_defaults_to_none
        >>> with set_get_defaults_to_none(False):
        ...     TensorDict({}).get("x")
        Traceback (most recent call last):
        ...
        tensordict.errors.MissingKey: key 'x' not found in TensorDict with keys []
    """

    default = True


def lazy_legacy(allow_none: bool = False) -> bool | None:
    """Tell whether `stack` gives lazy stacks; see `set_lazy_legacy`.

    Args:
        allow_none: None says that it has not been set.

    Examples:
        >>> from tensordict import lazy_legacy
        >>> lazy_legacy()
        False
    """
    return set_lazy_legacy.state(allow_none)


def list_to_stack(allow_none: bool = False) -> bool | None:
    """Tell whether a list is one value a row; see `set_list_to_stack`.

    Args:
        allow_none: None says that it has not been set.

    Examples:
        >>> from tensordict import list_to_stack
        >>> list_to_stack()
        True
    """
    return set_list_to_stack.state(allow_none)


def capture_non_tensor_stack(allow_none: bool = False) -> bool | None:
    """Tell whether a stack of equal non-tensors is one value; see `set_capture_non_tensor_stack`.

    Args:
        allow_none: None says that it has not been set.

    Examples:
        >>> from tensordict import capture_non_tensor_stack
        >>> capture_non_tensor_stack()
        False
    """
    return set_capture_non_tensor_stack.state(allow_none)


def get_defaults_to_none() -> bool:
    """Tell whether `get` returns None for a missing key; see `set_get_defaults_to_none`.

    Examples:
        >>> from tensordict import get_defaults_to_none
        >>> get_defaults_to_none()
        True
    """
    return bool(set_get_defaults_to_none.state(False))
