"""Nested dicts of tensors that behave like one tensor, and are datasets."""

import gc

# What is imported stays, so a collection on the way would only look at all objects of torch once more.
_collecting = gc.isenabled()
gc.disable()
try:
    from tensordict import _lazy as _lazy
    from tensordict import _reductions as _reductions
    from tensordict import _td as _td
    from tensordict import base as base
    from tensordict import data as data
    from tensordict import functional as functional
    from tensordict import persistent as persistent
    from tensordict import tensordict as tensordict
    from tensordict import utils as utils
    from tensordict._version import __version__
    from tensordict.aliases import NO_DEFAULT, NestedKey
    from tensordict.core.walk import default_is_leaf, is_leaf_nontensor
    from tensordict.keys import unravel_key, unravel_key_list, unravel_key_to_tuple
    from tensordict.kinds.attrs import TensorAttrs
    from tensordict.kinds.collection import TensorCollection, TensorDictBase
    from tensordict.kinds.dense import TensorDict
    from tensordict.kinds.lazy import LazyStackedTensorDict
    from tensordict.kinds.nontensor import MetaData, NonTensorData, NonTensorDataBase, NonTensorStack
    from tensordict.kinds.persistent import PersistentTensorDict
    from tensordict.kinds.typed import TypedTensorDict
    from tensordict.kinds.unbatched import UnbatchedTensor
    from tensordict.memmap import MemoryMappedTensor
    from tensordict.ops.join import cat, lazy_stack, maybe_dense_stack, stack
    from tensordict.ops.mapped import append_memmap
    from tensordict.ops.pack import PackLayout
    from tensordict.ops.parallel import RayExecutor, WorkerError
    from tensordict.roof import transport as transport
    from tensordict.roof import trees as trees
    from tensordict.roof.collate import collate
    from tensordict.roof.functions import (
        KEY_SEPARATOR,
        assert_allclose_td,
        assert_close,
        dense_stack_tds,
        from_any,
        from_consolidated,
        from_dict,
        from_h5,
        from_namedtuple,
        from_pytree,
        from_tuple,
        from_zarr,
        fromkeys,
        group_by,
        is_bool,
        is_floating,
        is_inexact,
        is_integer,
        is_memmap_archive,
        is_non_tensor,
        is_tensor_collection,
        load,
        load_memmap,
        make_tensordict,
        memmap,
        merge_tensordicts,
        pack_memmap,
        pad,
        pad_sequence,
        refresh_archive_checksums,
        save,
        unpack_memmap,
        unpad_sequence,
    )
    from tensordict.roof.parsing import parse_tensor_dict_string
    from tensordict.settings import (
        capture_non_tensor_stack,
        get_defaults_to_none,
        get_printoptions,
        lazy_legacy,
        list_to_stack,
        set_capture_non_tensor_stack,
        set_get_defaults_to_none,
        set_lazy_legacy,
        set_list_to_stack,
        set_printoptions,
    )
    from tensordict.tensorclass import TensorClass, from_dataclass, is_tensorclass, tensorclass
finally:
    if _collecting:
        gc.enable()

__all__ = [
    "KEY_SEPARATOR",
    "NO_DEFAULT",
    "LazyStackedTensorDict",
    "MemoryMappedTensor",
    "MetaData",
    "NestedKey",
    "NonTensorData",
    "NonTensorDataBase",
    "NonTensorStack",
    "PackLayout",
    "PersistentTensorDict",
    "RayExecutor",
    "TensorAttrs",
    "TensorClass",
    "TensorCollection",
    "TensorDict",
    "TensorDictBase",
    "TypedTensorDict",
    "UnbatchedTensor",
    "WorkerError",
    "__version__",
    "append_memmap",
    "assert_allclose_td",
    "assert_close",
    "capture_non_tensor_stack",
    "cat",
    "collate",
    "default_is_leaf",
    "dense_stack_tds",
    "from_any",
    "from_consolidated",
    "from_dataclass",
    "from_dict",
    "from_h5",
    "from_namedtuple",
    "from_pytree",
    "from_tuple",
    "from_zarr",
    "fromkeys",
    "get_defaults_to_none",
    "get_printoptions",
    "group_by",
    "is_bool",
    "is_floating",
    "is_inexact",
    "is_integer",
    "is_leaf_nontensor",
    "is_memmap_archive",
    "is_non_tensor",
    "is_tensor_collection",
    "is_tensorclass",
    "lazy_legacy",
    "lazy_stack",
    "list_to_stack",
    "load",
    "load_memmap",
    "make_tensordict",
    "maybe_dense_stack",
    "memmap",
    "merge_tensordicts",
    "pack_memmap",
    "pad",
    "pad_sequence",
    "parse_tensor_dict_string",
    "refresh_archive_checksums",
    "save",
    "set_capture_non_tensor_stack",
    "set_get_defaults_to_none",
    "set_lazy_legacy",
    "set_list_to_stack",
    "set_printoptions",
    "stack",
    "tensorclass",
    "unpack_memmap",
    "unpad_sequence",
    "unravel_key",
    "unravel_key_list",
    "unravel_key_to_tuple",
]
