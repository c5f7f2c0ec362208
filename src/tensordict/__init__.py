"""Nested dicts of tensors that behave like one tensor, and are datasets."""

from tensordict._version import __version__
from tensordict.aliases import NO_DEFAULT, NestedKey
from tensordict.core.walk import default_is_leaf, is_leaf_nontensor
from tensordict.keys import unravel_key, unravel_key_list, unravel_key_to_tuple
from tensordict.kinds.collection import TensorCollection, TensorDictBase
from tensordict.kinds.dense import TensorDict
from tensordict.kinds.lazy import LazyStackedTensorDict
from tensordict.kinds.nontensor import NonTensorData, NonTensorStack
from tensordict.kinds.persistent import PersistentTensorDict
from tensordict.memmap import MemoryMappedTensor
from tensordict.ops.join import cat, lazy_stack, maybe_dense_stack, stack
from tensordict.ops.parallel import WorkerError
from tensordict.roof import transport as transport
from tensordict.roof import trees as trees
from tensordict.roof.collate import collate
from tensordict.roof.functions import (
    KEY_SEPARATOR,
    assert_allclose_td,
    assert_close,
    dense_stack_tds,
    from_any,
    from_dict,
    from_h5,
    from_namedtuple,
    from_pytree,
    from_tuple,
    from_zarr,
    fromkeys,
    group_by,
    is_non_tensor,
    is_tensor_collection,
    load_memmap,
    make_tensordict,
    merge_tensordicts,
    pad,
    pad_sequence,
    unpad_sequence,
)
from tensordict.settings import (
    capture_non_tensor_stack,
    get_defaults_to_none,
    lazy_legacy,
    list_to_stack,
    set_capture_non_tensor_stack,
    set_get_defaults_to_none,
    set_lazy_legacy,
    set_list_to_stack,
)
from tensordict.tensorclass import TensorClass, is_tensorclass, tensorclass

__all__ = [
    "KEY_SEPARATOR",
    "NO_DEFAULT",
    "LazyStackedTensorDict",
    "MemoryMappedTensor",
    "NestedKey",
    "NonTensorData",
    "NonTensorStack",
    "PersistentTensorDict",
    "TensorClass",
    "TensorCollection",
    "TensorDict",
    "TensorDictBase",
    "WorkerError",
    "__version__",
    "assert_allclose_td",
    "assert_close",
    "capture_non_tensor_stack",
    "cat",
    "collate",
    "default_is_leaf",
    "dense_stack_tds",
    "from_any",
    "from_dict",
    "from_h5",
    "from_namedtuple",
    "from_pytree",
    "from_tuple",
    "from_zarr",
    "fromkeys",
    "get_defaults_to_none",
    "group_by",
    "is_leaf_nontensor",
    "is_non_tensor",
    "is_tensor_collection",
    "is_tensorclass",
    "lazy_legacy",
    "lazy_stack",
    "list_to_stack",
    "load_memmap",
    "make_tensordict",
    "maybe_dense_stack",
    "merge_tensordicts",
    "pad",
    "pad_sequence",
    "set_capture_non_tensor_stack",
    "set_get_defaults_to_none",
    "set_lazy_legacy",
    "set_list_to_stack",
    "stack",
    "tensorclass",
    "unpad_sequence",
    "unravel_key",
    "unravel_key_list",
    "unravel_key_to_tuple",
]
