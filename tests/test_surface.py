"""The surface: the words and functions that this package promises, on every kind, with their parameters.

The tables are literal, so that a word or a parameter cannot go or come by accident.
"""

from __future__ import annotations

import inspect
import pathlib
import re
import subprocess
import sys
from collections import namedtuple
from typing import Any

import pytest
import torch

import tensordict
import tensordict.base
import tensordict.utils
from tensordict import (
    LazyStackedTensorDict,
    MetaData,
    NonTensorData,
    NonTensorStack,
    PersistentTensorDict,
    TensorClass,
    TensorDict,
    TypedTensorDict,
    lazy_stack,
)

ROOT = pathlib.Path(__file__).resolve().parent.parent

WORDS = """
abs() abs_() acos() acos_() add(other,alpha,default) add_(other,alpha) addcdiv(other1,other2,value)
addcdiv_(other1,other2,value) addcmul(other1,other2,value) addcmul_(other1,other2,value) all(dim)
amax(dim,keepdim,reduce) amin(dim,keepdim,reduce) any(dim)
apply(fn,batch_size,device,names,inplace,default,filter_empty,propagate_lock,call_on_nested,is_leaf,out,named,nested_keys)
apply_(fn)
as_tensor() asin() asin_() atan() atan_() atleast_1d() atleast_2d() atleast_3d() attrs(fields,num_threads)
auto_batch_size_(batch_dims,keep_compliant_size) auto_device_() backward(gradient,retain_graph,create_graph,inputs)
batch_dims batch_size bfloat16(cast_filter) bitwise_and(other,default) bool(cast_filter) broadcast_to(shape,size)
bytes(count_duplicates) cat(input,dim,out) cat_from_tensordict(dim,sorted,out) cat_tensors(out_key,dim,keep_entries)
ceil() ceil_() chunk(chunks,dim) clamp(min,max,out) clamp_max(other,default) clamp_max_(other) clamp_min(other,default)
clamp_min_(other) clear() clear_device_() clear_refs_for_compile_() clone(recurse,memory_format) complex128(cast_filter)
complex32(cast_filter) complex64(cast_filter)
consolidate(filename,num_threads,device,non_blocking,inplace,return_early,use_buffer,share_memory,pin_memory,metadata,layout)
contiguous(canonical,inplace) copy() copy_(tensordict,non_blocking)
copy_at_(tensordict,idx,non_blocking,fast) cos() cos_() cosh() cosh_() cpu() create_nested(key) cuda(device)
cummax(dim,reduce,return_indices) cummin(dim,reduce,return_indices) data data_ptr(storage) del_(key) densify(layout)
depth detach() detach_() device dim() div(other,default) div_(other) double(cast_filter) dtype
empty(recurse,batch_size,device,names) entry_class(key) erf() erf_() erfc() erfc_() exclude(inplace) exp() exp_()
expand(size) expand_as(other) expm1() expm1_() fill_(key,value) filter_empty_() filter_non_tensor_data()
flatten(start_dim,end_dim,inplace) flatten_keys(separator,inplace,is_leaf) flip(dims) fliplr() flipud()
float(cast_filter) float16(cast_filter) float32(cast_filter) float64(cast_filter) floor() floor_() frac() frac_()
from_any(obj,auto_batch_size,batch_dims,device,batch_size)
from_dataclass(dataclass,dest_cls,auto_batch_size,batch_dims,as_tensorclass,device,batch_size)
from_dict(input_dict,auto_batch_size,batch_size,device,batch_dims,names)
from_dict_instance(input_dict,auto_batch_size,batch_size,device,batch_dims,names)
from_consolidated(filename,mode,allow_pickle,verify)
from_h5(filename,mode,auto_batch_size,batch_dims,batch_size,non_tensor_as_stack)
from_list(input,auto_batch_size,batch_size,device,batch_dims,names,lazy)
from_namedtuple(named_tuple,auto_batch_size,batch_dims,device,batch_size)
from_pytree(pytree,batch_size,auto_batch_size,batch_dims) from_schema(schema,batch_size,storage,device,prefix)
from_tuple(obj,auto_batch_size,batch_dims,device,batch_size)
from_zarr(filename,mode,auto_batch_size,batch_dims,batch_size,non_tensor_as_stack,allow_pickle) fromkeys(keys,value)
gather(dim,index,out,inplace)
gather_rows(index,out,threads)
get(key,default) get_at(key,index,default) get_item_shape(key) get_non_tensor(key,default)
grad half(cast_filter) index_select(dim,index) int(cast_filter) int16(cast_filter) int32(cast_filter) int64(cast_filter)
int8(cast_filter) is_consolidated()
is_contiguous() is_cpu is_cuda is_empty() is_floating_point() is_locked is_memmap() is_meta
is_non_tensor(key) is_pinned() is_shared() isfinite() isinf() isnan() isneginf() isposinf() isreal()
items(include_nested,leaves_only,is_leaf,sort) keys(include_nested,leaves_only,is_leaf,sort) lazy_stack(input,dim,out)
lerp(end,weight) lerp_(end,weight) lgamma() lgamma_()
load(prefix) load_memmap(prefix,device,non_blocking,out,robust_key,subpath,mode,num_threads,allow_pickle,verify)
load_memmap_(prefix,robust_key,allow_pickle,mode)
load_state_dict(state_dict,strict,assign,from_flatten) lock_() log() log10() log10_() log1p() log1p_() log2() log2_()
log_() logical_and(other,default) logical_not() logical_or(other,default) logical_xor(other,default)
logsumexp(dim,keepdim,out) long(cast_filter)
map(source,fn,dim,num_workers,out,chunksize,num_chunks,pool,generator,max_tasks_per_child,worker_threads,index_with_generator,pbar,mp_start_method,seed,retries,timeout)
map_iter(source,fn,dim,num_workers,shuffle,chunksize,num_chunks,pool,generator,max_tasks_per_child,worker_threads,index_with_generator,pbar,mp_start_method,seed,retries,timeout,prefetch)
masked_fill(mask,value) masked_fill_(mask,value) masked_select(mask,inplace) max(dim,keepdim,reduce,return_indices)
maximum(other,default) maximum_(other) maybe_dense_stack(input,dim,out) mean(dim,keepdim,reduce)
memmap(prefix,copy_existing,num_threads,return_early,share_non_tensor,existsok,robust_key,atomic,layout,archive,compression)
dumps(prefix,copy_existing,num_threads,return_early,share_non_tensor,robust_key,atomic,layout,archive,compression)
save(prefix,copy_existing,num_threads,return_early,share_non_tensor,robust_key,atomic,layout,archive,compression)
memmap_(prefix,copy_existing,num_threads,return_early,share_non_tensor,existsok,robust_key,atomic,layout)
memmap_refresh_(allow_pickle) lock_rows(start,stop,timeout) flush(checksums)
make_memmap(key,shape,dtype,robust_key) make_memmap_from_tensor(key,tensor,copy_data,existsok,robust_key)
make_memmap_from_storage(key,storage,shape,dtype,robust_key)
memmap_like(prefix,copy_existing,existsok,num_threads,return_early,share_non_tensor,robust_key,layout,archive)
min(dim,keepdim,reduce,return_indices)
minimum(other,default) minimum_(other) mod(other,default) moveaxis(source,destination) movedim(source,destination)
mul(other,default) mul_(other)
named_apply(fn,nested_keys,batch_size,device,names,inplace,default,filter_empty,propagate_lock,call_on_nested,is_leaf,out)
names nanmean(dim,keepdim,reduce) nansum(dim,keepdim,reduce) narrow(dim,start,length) ndim ndimension() neg() neg_()
new_empty(dtype,device,requires_grad,layout,pin_memory)
new_full(size,fill_value,dtype,device,requires_grad,layout,pin_memory)
new_ones(dtype,device,requires_grad,layout,pin_memory) new_tensor(data,dtype,device,requires_grad,pin_memory)
new_zeros(dtype,device,requires_grad,layout,pin_memory) non_tensor_items(include_nested) norm(out,dtype,key_transform)
numel() numpy() pack(dim,layout) pad(pad_size,value,inplace,safe) param_count(count_duplicates) permute(dims)
pin_memory(num_threads,inplace) pin_memory_(num_threads) pop(key,default) popitem() pow(other,default) pow_(other)
prod(dim,keepdim,dtype,reduce) qint32(cast_filter) qint8(cast_filter)
quantile(q,dim,keepdim,interpolation,reduce,key_transform) quint4x2(cast_filter) quint8(cast_filter) reciprocal()
reciprocal_() record_stream(stream) refine_names() relu() relu_() rename() rename_() rename_key_(old_key,new_key,safe)
rename_keys(mapping,strict) repeat(inplace) repeat_interleave(repeats,dim,output_size,inplace) replace() requires_grad
requires_grad_(requires_grad) reshape(shape,size) roll(shifts,dims,inplace) rot90(k,dims) round() round_() rsqrt()
rsqrt_() rsub(other,alpha,default) saved_path select(inplace,strict,as_tensordict)
separates(default,strict,filter_empty) set(key,item,inplace,non_blocking) set_(key,item,non_blocking)
set_at_(key,value,index,non_blocking) set_non_tensor(key,value) setdefault(key,default,inplace) shape share_memory_()
sigmoid() sigmoid_() sign() sign_() sin() sin_() sinh() sinh_() size(dim) softmax(dim,dtype) sorted_keys
split(split_size,dim) split_keys(inplace,default,strict,reproduce_struct) sqrt() sqrt_() square() square_() squeeze(dim)
stack(input,dim,out) stack_from_tensordict(dim,sorted,out) stack_tensors(out_key,dim,keep_entries)
state_dict(destination,prefix,keep_vars,flatten) std(dim,keepdim,reduce) sub(other,alpha,default) sub_(other,alpha)
sum(dim,keepdim,reduce) swapaxes(axis0,axis1) swapdims(axis0,axis1,dim0,dim1) tan() tan_() tanh() tanh_()
tensor_split(indices_or_sections,dim) tile(dims) to() to_dict(retain_none,convert_tensors,tolist_first) to_h5(filename)
to_lazystack(dim) to_namedtuple(dest_cls) to_padded_tensor(padding,mask_key) to_pytree() to_tensordict(retain_none)
to_zarr(filename,allow_pickle) tolist(convert_nodes,convert_tensors,tolist_first,as_linked_list) transpose(dim0,dim1)
trunc() trunc_() type(dst_type,cast_filter) uint16(cast_filter) uint32(cast_filter) uint64(cast_filter)
uint8(cast_filter) unbind(dim) unflatten(dim,unflattened_size,inplace) unflatten_keys(separator,inplace) unlock_()
unsqueeze(dim) update(input_dict_or_td,clone,inplace,non_blocking,keys_to_update,is_leaf,update_batch_size)
update_(input_dict_or_td,clone,non_blocking,keys_to_update)
update_at_(input_dict_or_td,idx,clone,non_blocking,keys_to_update) values(include_nested,leaves_only,is_leaf,sort)
var(dim,keepdim,reduce) view(size,batch_size) where(condition,other,out,pad,update_batch_size) zero_()
zero_grad(set_to_none)
"""
LAZY = """
append(tensordict) extend(tensordict) get_nestedtensor(key,default,layout) hook_in hook_out insert(index,tensordict)
tensordicts valid_keys(include_nested,leaves_only,is_leaf,sort)
"""
DECLARED = """
fields() from_tensordict(td,check)
"""
STORED = """
LOCKING close() kwargs
"""
TYPED = """
fields() from_tensordict(tensordict,non_tensordict)
"""
ONE_VALUE = """
data extend(tensordict) fields() from_tensordict(tensordict,non_tensordict,safe) maybe_to_stack()
"""
COLUMN = """
data from_nontensordata(non_tensor) maybe_to_stack() stack_dim tensordicts
"""
FUNCTIONS = """
KEY_SEPARATOR LazyStackedTensorDict(stack_dim,hook_out,hook_in,batch_size,device,names,stack_dim_name,strict_shape)
MemoryMappedTensor(source,dtype,shape,filename) MetaData(data,batch_size,device,names) NO_DEFAULT NestedKey
NonTensorData(data,batch_size,device,names) NonTensorDataBase(data,batch_size,device,names) NonTensorStack(stack_dim)
PackLayout(keys,shapes,dim,nested,device)
PersistentTensorDict(batch_size,filename,group,mode,backend,device,validate_batch_size,non_tensor_as_stack,allow_pickle)
TensorAttrs(batch_size,device,names) TensorClass() TensorCollection()
TensorDict(source,batch_size,device,names,non_blocking,lock) TensorDictBase() TypedTensorDict()
RayExecutor(options) UnbatchedTensor(data,batch_size) WorkerError __version__
assert_allclose_td(actual,expected,rtol,atol,equal_nan,intersection,msg,prefix)
assert_close(actual,expected,rtol,atol,equal_nan,intersection,msg,prefix) capture_non_tensor_stack(allow_none)
cat(input,dim,out) collate(batch,pad_keys,nested_keys,mask_key,padding_side,pad_to_multiple_of,cat_dim)
default_is_leaf(kind) dense_stack_tds(td_list,dim) from_any(obj,auto_batch_size,batch_dims,device,batch_size)
from_dataclass(obj,dest_cls,auto_batch_size,batch_dims,batch_size,frozen,autocast,nocast,inplace,shadow,tensor_only,device)
append_memmap(prefix,rows,allow_pickle)
from_dict(d,auto_batch_size,batch_dims,device,batch_size,names)
from_consolidated(filename,mode,allow_pickle,verify)
from_h5(h5_file,mode,auto_batch_size,batch_dims,batch_size,non_tensor_as_stack)
from_namedtuple(named_tuple,auto_batch_size,batch_dims,device,batch_size)
from_pytree(pytree,batch_size,auto_batch_size,batch_dims) from_tuple(obj,auto_batch_size,batch_dims,device,batch_size)
from_zarr(zarr_file,mode,auto_batch_size,batch_dims,batch_size,non_tensor_as_stack,allow_pickle) fromkeys(keys,value)
get_defaults_to_none() get_printoptions() group_by(tensordict,key) is_bool() is_floating() is_inexact() is_integer()
is_leaf_nontensor(kind) is_non_tensor(data) is_tensor_collection(datatype) is_tensorclass(obj) lazy_legacy(allow_none)
lazy_stack(input,dim,out) list_to_stack(allow_none)
load(prefix,device,non_blocking,out,robust_key,subpath,mode,num_threads,allow_pickle,verify)
load_memmap(prefix,device,non_blocking,out,robust_key,subpath,mode,num_threads,allow_pickle,verify)
make_tensordict(input_dict,batch_size,device,auto_batch_size) maybe_dense_stack(input,dim,out)
memmap(data,prefix,copy_existing,num_threads,return_early) save(data,prefix,copy_existing,num_threads,return_early)
merge_tensordicts(callback_exist) is_memmap_archive(path) pack_memmap(prefix,archive_path,compression,compresslevel)
refresh_archive_checksums(archive_path) unpack_memmap(archive_path,prefix)
pad(tensordict,pad_size,value,inplace,safe)
pad_sequence(list_of_tensordicts,pad_dim,padding_value,out,return_mask,padding_side) parse_tensor_dict_string(s)
set_capture_non_tensor_stack(mode) set_get_defaults_to_none(set_to_none) set_lazy_legacy(mode) set_list_to_stack(mode)
set_printoptions(verbose) stack(input,dim,out)
tensorclass(cls,autocast,frozen,nocast,shadow,tensor_only,skip_post_init_on_rebuild,cast_filter,kw_only)
unpad_sequence(padded,mask,pad_dim) unravel_key(key) unravel_key_list(keys) unravel_key_to_tuple(key)
"""


def rows(table: str) -> dict[str, list[str]]:
    """Return the parameters that a table names for each word."""
    found = {}
    for row in table.split():
        name, _, parameters = row.rstrip(")").partition("(")
        found[name] = [one for one in parameters.split(",") if one]
    return found


def lacks(function: Any, parameters: list[str]) -> list[str]:
    """Return the parameters that a function does not take, by name or as any keyword."""
    own = inspect.signature(function).parameters
    anything = any(one.kind is one.VAR_KEYWORD for one in own.values())
    return [] if anything else [one for one in parameters if one not in own]


KINDS: list[tuple[type, str]] = [
    (TensorDict, WORDS),
    (LazyStackedTensorDict, WORDS + LAZY),
    (TensorClass, WORDS + TYPED),
    (TypedTensorDict, WORDS + DECLARED),
    (PersistentTensorDict, WORDS + STORED),
    (NonTensorData, WORDS + ONE_VALUE),
    (MetaData, WORDS + ONE_VALUE),
    (NonTensorStack, WORDS + COLUMN),
]


@pytest.mark.parametrize("kind, table", KINDS, ids=lambda one: getattr(one, "__name__", ""))
def test_every_kind_has_every_word(kind: type, table: str) -> None:
    wrong = []
    for name, parameters in rows(table).items():
        value = inspect.getattr_static(kind, name, inspect)
        if value is inspect:
            wrong.append(f"{name} is missing")
        elif not isinstance(value, property) and value is not None:
            wrong += [f"{name} does not take {one}" for one in lacks(getattr(kind, name), parameters)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind, table", KINDS, ids=lambda one: getattr(one, "__name__", ""))
def test_no_kind_has_a_word_that_is_not_promised(kind: type, table: str) -> None:
    extra = sorted({name for name in dir(kind) if not name.startswith("_")} - set(rows(table)))
    assert not extra, f"add to the table in tests/test_surface.py, or make private: {extra}"


def test_the_package_has_every_function() -> None:
    promised = rows(FUNCTIONS)
    assert sorted(promised) == sorted(tensordict.__all__)
    for name, parameters in promised.items():
        assert not parameters or not lacks(getattr(tensordict, name), parameters), name


def test_the_modules_are_there_when_the_package_is() -> None:
    names = "tensordict functional persistent base utils _td _lazy".split()
    program = f"import tensordict; print([type(getattr(tensordict, name)).__name__ for name in {names}])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(["module"] * len(names))


def test_programs_find_the_helpers_that_they_import() -> None:
    for (
        name
    ) in "_zip_strict _unravel_key_to_tuple expand_right expand_as_right is_seq_of_nested_key is_tensorclass".split():
        assert callable(getattr(tensordict.utils, name))
    for name in "_is_leaf_nontensor _default_is_leaf is_tensor_collection TensorDictBase NO_DEFAULT NestedKey".split():
        assert hasattr(tensordict.base, name)
    for name in "utils base tensorclass tensordict functional persistent _td _lazy".split():
        module = sys.modules[f"tensordict.{name}"]
        assert all(hasattr(module, word) for word in module.__all__)
        shared = set(module.__all__) & set(tensordict.__all__)
        assert shared and all(getattr(module, word) is getattr(tensordict, word) for word in shared)
    assert tensordict.utils.set_lazy_legacy is tensordict.set_lazy_legacy
    assert tensordict.utils._getitem_batch_size([4, 3], (slice(1, 3), None, torch.tensor([0, 1]))) == (2, 1, 2)
    assert tensordict.utils._unravel_key_to_tuple(("a", ("b",))) == ("a", "b")
    assert tensordict.utils._unravel_key_to_tuple(1) == ()
    assert tensordict._td._unravel_key_to_tuple(("a", ("b",))) == ("a", "b")
    with pytest.raises(ValueError, match="longer"):
        list(tensordict.utils._zip_strict([1], [1, 2]))
    with pytest.raises(RuntimeError, match=r"\[3\] does not expand on the right to shape \[2, 3\]"):
        tensordict.utils.expand_as_right(torch.zeros(3), torch.zeros(2, 3))


# ---- documentation


def tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "methods.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_page_of_methods_is_complete_and_not_stale() -> None:
    done = tool("--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_word_and_every_name_is_on_the_page() -> None:
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)", text))
    assert not (set(rows(WORDS + LAZY + TYPED + STORED)) | set(tensordict.__all__)) - named - {"LOCKING"}


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda p: p.name)
def test_the_pages_name_no_absent_words(page: pathlib.Path) -> None:
    text = page.read_text(encoding="utf-8")
    words = set(re.findall(r"\b(?:td|TensorDict)\.([a-z]\w*)", text))
    assert not words - {name for kind, _ in KINDS for name in dir(kind)}
    assert not set(re.findall(r"from tensordict import (\w+)", text)) - set(tensordict.__all__)


# ---- what the parameters mean


def small() -> TensorDict:
    return TensorDict({"x": torch.arange(6.0).view(2, 3), "n": {"y": torch.ones(2)}}, [2])


def test_update_takes_the_batch_size_of_a_source_that_has_every_key() -> None:
    td = small()
    source = TensorDict({"x": torch.zeros(4, 3), "n": {"y": torch.ones(4)}}, [4])
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        td.update(source)
    assert td.update(source, update_batch_size=True).batch_size == torch.Size([4])
    assert td["n"].batch_size == torch.Size([4])
    with pytest.raises(RuntimeError, match=r"no values for the keys \['n'\]"):
        td.update(source[:2].select("x"), update_batch_size=True)
    assert td.batch_size == torch.Size([4])
    with pytest.raises(RuntimeError, match="locked"):
        td.lock_().update(source[:2], update_batch_size=True)


def test_update_replaces_what_counts_as_a_leaf() -> None:
    td = small().update({"n": TensorDict({"z": torch.ones(2)}, [2])}, is_leaf=lambda kind: True)
    assert list(td["n"].keys()) == ["z"]


def test_options_of_updates_are_not_taken_for_keys() -> None:
    td = small()
    td.update({"x": torch.ones(2, 3)}, non_blocking=True, inplace=True)
    td.update_({"x": torch.ones(2, 3), "n": {"y": torch.zeros(2)}}, non_blocking=True, keys_to_update=["x"])
    assert list(td.keys()) == ["x", "n"]
    assert td["n", "y"].tolist() == [1.0, 1.0]


def test_dicts_and_lists_convert_as_asked() -> None:
    td = TensorDict({"x": [1, 2], "s": "a", "none": None}, [2])
    assert td.to_dict(retain_none=False, convert_tensors=True) == {"x": [1, 2], "s": "a"}
    assert td.exclude("none").to_dict(convert_tensors=True, tolist_first=True) == {"x": [1, 2], "s": ["a", "a"]}
    assert [type(row) for row in td.tolist(convert_nodes=False)] == [TensorDict, TensorDict]
    with pytest.raises(TypeError, match="convert_nodes"):
        td.tolist(convert_nodes=False, convert_tensors=True)


def test_contiguous_in_place_and_canonical() -> None:
    td = TensorDict({"x": torch.zeros(2, 3).t(), "n": {"y": torch.zeros(10).as_strided((1, 3), (7, 1))}})
    inner = td["n"]
    assert td.contiguous()["n", "y"].stride() == (7, 1)
    assert td.contiguous(canonical=True)["n", "y"].stride() == (3, 1)
    assert td.contiguous(canonical=True, inplace=True) is td
    assert td["n"] is inner
    assert td["x"].is_contiguous()
    assert inner["y"].stride() == (3, 1)
    with pytest.raises(RuntimeError, match="locked"):
        td.lock_().contiguous(inplace=True)


def test_apply_locks_renames_and_stops_at_nested_nodes_as_asked() -> None:
    td = small().lock_()
    assert td.apply(lambda x: x + 1, propagate_lock=True).is_locked
    assert not td.apply(lambda x: x + 1).is_locked
    assert td.apply(lambda x: x + 1, names=["rows"]).names == ["rows"]
    seen: list[str] = []
    td.named_apply(lambda key, x: seen.append(key), call_on_nested=True)
    assert seen == ["x", "n"]
    with pytest.raises(TypeError, match="lock"):
        td.apply(lambda x: x, lock=True)  # type: ignore[call-arg]


def test_rows_of_a_list_get_the_batch_size_asked_for() -> None:
    data = [{"x": torch.zeros(3)}, {"x": torch.zeros(3)}]
    assert TensorDict.from_list(data, auto_batch_size=True).batch_size == torch.Size([2, 3])
    assert TensorDict.from_list(data, auto_batch_size=True, batch_dims=1).batch_size == torch.Size([2])
    assert TensorDict.from_list(data, batch_size=[2, 3]).batch_size == torch.Size([2, 3])
    with pytest.raises(ValueError, match=r"begin with the number of rows, 2, got \[3\]"):
        TensorDict.from_list(data, batch_size=[3])


class Frame(TensorClass):
    x: torch.Tensor
    label: Any = None


def test_a_tensorclass_makes_itself() -> None:
    assert type(Frame.from_dict({"x": torch.zeros(2)})) is Frame
    assert type(Frame.from_any({"x": torch.zeros(2)})) is Frame
    assert type(Frame.from_list([{"x": 1.0}, {"x": 2.0}])) is Frame
    assert type(Frame(torch.zeros(2)).densify()) is Frame
    assert type(Frame(torch.zeros(2)).select("x")) is Frame
    assert type(Frame(torch.zeros(2)).select("x", as_tensordict=True)) is TensorDict


def test_new_leaves_take_the_options_of_torch() -> None:
    assert small().new_zeros(4, requires_grad=True)["n", "y"].requires_grad
    assert small().new_full([4], 2, dtype=torch.int8)["x"].dtype is torch.int8


def test_bytes_and_elements_count_a_shared_leaf_once_if_asked() -> None:
    leaf = torch.zeros(2)
    td = TensorDict({"a": leaf, "b": leaf})
    assert (td.bytes(), td.bytes(count_duplicates=False)) == (16, 8)
    assert (td.param_count(), td.param_count(count_duplicates=False)) == (4, 2)


Pair = namedtuple("Pair", "x n")


def test_structures_of_python_and_back() -> None:
    tree = {"a": [torch.zeros(1), ("text",)], "p": Pair(torch.ones(1), {"q": torch.ones(2)})}
    again = TensorDict.from_pytree(tree).to_pytree()
    assert isinstance(again["p"], Pair)
    assert again["a"][1] == ("text",)
    assert torch.equal(again["p"].n["q"], torch.ones(2))
    assert TensorDict.from_pytree(3) == 3
    assert isinstance(small().to_namedtuple(Pair), Pair)
    with pytest.raises(ValueError, match="valid identifiers"):
        TensorDict({"a b": 1}).to_namedtuple()


def test_ragged_values_are_padded() -> None:
    ragged = lazy_stack([TensorDict({"x": torch.ones(n), "y": torch.ones(2)}) for n in (1, 2)])
    padded = TensorDict({"n": ragged}).to_padded_tensor(9.0)
    assert padded["n", "x"].tolist() == [[1.0, 9.0], [1.0, 1.0]]
    with pytest.raises(RuntimeError, match="batch dims that differ"):
        ragged.to_padded_tensor(mask_key="mask")


def test_the_batch_size_of_a_lazy_stack_is_found() -> None:
    ragged = lazy_stack([TensorDict({"x": torch.ones(n), "y": torch.ones(n)}) for n in (3, 3)])
    assert ragged.auto_batch_size_().batch_size == torch.Size([2, 3])
    assert lazy_stack([TensorDict({"x": torch.ones(n)}) for n in (1, 2)]).auto_batch_size_().batch_size == torch.Size(
        [2]
    )


def test_one_number_is_written_to_all_rows() -> None:
    td = TensorDict({"x": torch.zeros(2, 3)}, [2, 3])
    assert td.set_at_("x", 1.0, 0)["x"].sum() == 3
