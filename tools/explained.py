"""What `tools/differential.py` finds and `docs/differences.md` explains: one rule a situation.

A rule names the words (the last line of the shortest program), what differs, what the program must have for it to be
this situation, and the sentence of the page, of which it quotes the beginning.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parent.parent / "docs" / "differences.md"


class Rule(NamedTuple):
    words: str  # separated by blanks; "" for those of the situation, whatever the word
    what: str  # a regular expression for one thing that differs
    why: str  # the beginning of a sentence of the page
    having: Callable[[str], bool]  # asked for the text of the program


def has(*patterns: str) -> Callable[[str], bool]:
    """Return whether a text has all of several patterns."""
    return lambda text: all(re.search(pattern, text) for pattern in patterns)


always = has()
lazy = has(r"lazy_stack|to_lazystack|maybe_dense_stack")
words = has(r'"text"|"word"')
names = has(r"names ?=|rename")
locked = has(r"lock_|propagate_lock")
bare = has(r'TensorDict\(\{("s": "text")?(, )?\}|: \{\}|= \{\}|create_nested|, \{\}\)|exclude|select|replace')
still = has(r"transpose|permute|movedim|moveaxis|swap\w+|rot90")  # no dim moves, or dims of size one do


def rows_of_nothing(text: str) -> bool:
    return bool(re.search(r"batch_size=\[[^\]]*\b0\b", text)) or ("[" in text and ":0" in text)


def wide(text: str) -> bool:
    """Tell whether a node is nested in one with fewer dims."""
    sizes = [size.count(",") + bool(size) for size in re.findall(r"batch_size=\[([^\]]*)\]", text)]
    return len(set(sizes)) > 1


def both(*conditions: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda text: all(condition(text) for condition in conditions)


PLAIN_MATH = (
    "abs neg exp square sign tanh clone contiguous detach + - * / ** & | ^ += *= -= add sub mul div pow rsub mod"
)
ALL_REDUCTIONS = "sum mean std var prod amax amin nansum nanmean max min logsumexp quantile cummax cummin softmax"

RULES: list[Rule] = [
    # ---- making and reading
    Rule(
        "",
        "locked|keys: .*|dtype|shape|values|batch|names",
        "`transpose`, `movedim` and their kin return a new",
        both(still, has(r"lock_|td\[|del |update|set|rename|pop|create|names|batch_size")),
    ),
    Rule(
        "",
        "kind: Tensor, published NonTensorData|kind: NonTensorData, published Tensor",
        "`transpose`, `movedim` and their kin return a new",
        still,
    ),
    Rule(
        "empty", r"keys: \[\] more, \['s'\] fewer", "`empty(recurse=True)` keeps no values at all", has("recurse=True")
    ),
    Rule(
        "auto_batch_size_",
        "batch|names|kind: RuntimeError, published done",
        "`auto_batch_size_` of a tensordict without values",
        bare,
    ),
    Rule(
        "rename_key_",
        r"kind: done, published (Key|Runtime)Error|kind: KeyError, published done|keys: .*",
        "`rename_key_` of a key to itself does nothing",
        always,
    ),
    Rule(
        "tolist", "kind: sequence, published dict|value", "`tolist` of a nested tensordict with more batch dims", wide
    ),
    Rule("split_keys", "kind: done, published KeyError", "`split_keys` takes `default=None`", has("default=None")),
    # ---- errors and failed writes
    Rule(
        "set_ update_ get_at del_",
        "kind: KeyError, published done",
        "`update_` and `set_` refuse a key that is not there",
        has("set_|update_"),
    ),
    Rule("get_at", "kind: KeyError, published done", "`get_at` of a missing key is a `KeyError`", always),
    Rule(
        "del_ pop", "kind: KeyError, published done", "A key that only some members of a lazy stack have", has("stack")
    ),
    Rule("apply", "kind: RuntimeError, published done", "`apply` checks the batch size", has("batch_size=")),
    Rule("set_at_", "kind: IndexError, published done", "An index that addresses more dims than", always),
    Rule("", "after an error: theirs changed", "A write, `set` or `update` that fails changes nothing", always),
    # ---- nested
    Rule(
        PLAIN_MATH
        + " "
        + ALL_REDUCTIONS
        + " apply named_apply lazy_stack stack maybe_dense_stack cat where lerp addcmul clamp",
        r"keys: \['(n|a|b|s|x|new|c|z)'(, '\w+')*\] more, \[\] fewer",
        "Words that compute keep nested tensordicts that are empty",
        bare,
    ),
    Rule(
        "",
        r"keys: \['(n|a|b|s|x|new|c|z)'(, '\w+')*\] more, \[\] fewer",
        "Words that compute keep nested tensordicts that are empty",
        both(bare, has(r"\* 2|\+ 1|apply|create_nested|split_keys|separates|cum|max|min")),
    ),
    Rule(
        "max min cummax cummin amax amin apply split_keys prod",
        "batch|names",
        "A nested tensordict with more batch dims than its parent keeps the further dims",
        wide,
    ),
    # ---- names
    Rule(
        "broadcast_to == != < <= > >= isfinite isnan logical_not logical_and",
        "names",
        "`broadcast_to`, comparisons and predicates keep names",
        names,
    ),
    Rule("tile", "names|value", "`tile` keeps names", names),
    Rule("names flatten", "names|value", "`tile` keeps names", has("tile")),
    Rule("unflatten", "names", "`unflatten` gives the new dims no name", names),
    Rule("new_zeros new_full new_ones new_empty", "names", "`new_zeros` and its kin take no names over", names),
    Rule("apply", "names", "A nested tensordict that has names of its own keeps them", names),
    Rule(
        "",
        "kind: done, published ValueError|kind: TensorDict, published unreadable, ValueError|"
        "kind: LazyStackedTensorDict, published unreadable, ValueError",
        "Nested tensordicts with more batch dims and no values can be read",
        names,
    ),
    # ---- locks
    Rule("", "locked", "The result of a word that computes is not locked", locked),
    # ---- reductions
    Rule(
        ALL_REDUCTIONS, r"kind: done, published \w+Error", '`dim="feature"` works for every reduction', has("feature")
    ),
    Rule(
        ALL_REDUCTIONS,
        r"kind: done, published \w+Error|shape|values|kind: Tensor, published sequence",
        "`reduce=True` goes with dims",
        has("reduce=True"),
    ),
    Rule("std var", "kind: RuntimeError, published done", "`reduce=True` goes with dims", has("reduce=True")),
    Rule(
        "max min quantile",
        "kind: TypeError, published done",
        "`max`, `min` and `quantile` refuse several dims",
        has(r"dim=\("),
    ),
    Rule(
        "amax amin prod",
        r"kind: IndexError, published done|kind: done, published IndexError|shape|values|batch|names",
        "`amax`, `amin` and `prod` over several dims reduce all",
        has(r"dim=\("),
    ),
    Rule(
        "prod max min", "shape|values|batch|names", "`keepdim=True` without `dim` keeps every dim", has("keepdim=True")
    ),
    Rule("add", r"kind: done, published \w+Error", "A default for missing keys works with numbers", has("default=0.0")),
    Rule(
        ALL_REDUCTIONS,
        "kind: done, published RuntimeError",
        "A reduction of a lazy stack without tensors",
        both(lazy, bare),
    ),
    # ---- torch's own
    Rule(
        "atleast_3d",
        "batch|names|shape|kind: NonTensorData, published NonTensorStack",
        "`atleast_3d` puts new dims where torch puts them",
        always,
    ),
    Rule(
        "",
        "batch|names|shape|values|value|kind: .*",
        "`atleast_3d` puts new dims where torch puts them",
        has("atleast_3d"),
    ),
    Rule(
        "index_select relu long rsub",
        r"kind: done, published \w+Error",
        "`2 ** td`, `index_select`, `relu` and `long` exist",
        always,
    ),
    Rule("**", r"kind: done, published \w+Error", "`2 ** td`, `index_select`, `relu` and `long` exist", always),
    Rule(
        "masked_fill where",
        r"kind: done, published \w+Error",
        "The mask of `masked_fill` and the condition of `where`",
        always,
    ),
    Rule("where", "dtype|values", "`where` gives the dtype that torch gives", has("td \\* |, \\d")),
    Rule(
        "gather permute fliplr rot90 narrow",
        "kind: RuntimeError, published done|kind: IndexError, published done",
        "`gather`, `permute`, `fliplr` and `rot90` refuse what torch refuses",
        always,
    ),
    Rule(
        "gather",
        r"kind: done, published \w+Error",
        "`gather`, `permute`, `fliplr` and `rot90` refuse what torch refuses",
        always,
    ),
    Rule("rename", "kind: done, published ValueError", "`rename()` of a tensordict without dims", has(r"rename\(\)")),
    Rule(
        "logical_and logical_not", r"kind: done, published \w+Error", "`logical_and` and its kin take numbers", always
    ),
    Rule(
        "stack_tensors cat_tensors",
        r"kind: done, published \w+Error",
        "`stack_tensors` and `cat_tensors` may name one key twice",
        always,
    ),
    Rule(
        "index update_at_",
        r"kind: done, published RuntimeError",
        "An index that adds dims may be written to",
        has("None|True|False"),
    ),
    Rule(
        "cat maybe_dense_stack stack lazy_stack",
        "kind: IndexError, published done",
        "A dim that is out of range is refused",
        always,
    ),
    # ---- non-tensors
    Rule(
        "",
        "kind: NonTensorData, published NonTensorStack",
        "A non-tensor that is the same for all rows stays one value",
        words,
    ),
    Rule(
        "",
        r"values|value|keys: \[.*\] more, \[.*'s'.*\] fewer|keys: \[.*\] more, \[\] fewer|"
        r"kind: NonTensor\w+, published (TensorDict|LazyStackedTensorDict)",
        "Non-tensors of a stack without rows are no values",
        both(words, rows_of_nothing),
    ),
    Rule(
        "add sorted_keys atleast_3d filter_non_tensor_data sorted",
        r"keys: \[\] more, \[.*\] fewer",
        "With a default or an intersection, a key that only one side has",
        has("intersection"),
    ),
    Rule(
        "",
        r"keys: .*'s'.* more, \[\] fewer|kind: NonTensor\w+, published (LazyStacked)?TensorDict|"
        r"values|keys: \[\] more, \['s'\] fewer",
        "Words that compute hand non-tensors on",
        both(words, lazy),
    ),
    Rule("cummax cummin", r"keys: \['\w'\] more, \[\] fewer|names", "Words that compute hand non-tensors on", words),
    Rule(
        PLAIN_MATH + " logical_and",
        r"kind: NonTensor\w+, published (LazyStacked)?TensorDict",
        "Words that compute hand non-tensors on",
        words,
    ),
    Rule(
        "== != < <= > >=",
        r"kind: Tensor, published \w+|keys: .*|kind: done, published TypeError",
        "Comparisons compare non-tensors too",
        words,
    ),
    Rule(
        "write",
        "values|kind: NonTensor\\w+, published Tensor",
        "A number or a tensor that is written to rows leaves non-tensors",
        words,
    ),
    # ---- lazy stacks
    Rule(
        "reshape flatten view unflatten repeat tile expand",
        "kind: TensorDict, published LazyStackedTensorDict",
        "A word that mixes the stack dim with others",
        lazy,
    ),
    Rule(
        "view batch_size repeat",
        r"kind: done, published \w+Error",
        "`view`, `reshape`, `flatten`, `unflatten` and `expand` of a lazy stack join its values",
        always,
    ),
    Rule(
        "add empty",
        "kind: TensorDict, published LazyStackedTensorDict",
        "Words with a default for missing keys give a dense",
        lazy,
    ),
    Rule(
        "stack maybe_dense_stack lazy_stack",
        r"kind: done, published \w+Error",
        "`torch.stack` of lazy stacks stacks them lazily",
        always,
    ),
    Rule(
        "+= *= -= add_ mul_ sub_ div_ pow_ neg_ exp_ abs_ zero_ fill_ update_ apply_ write",
        "values",
        "`torch.stack` of lazy stacks stacks them lazily",
        has("stack"),
    ),
    Rule(
        "narrow",
        "kind: LazyStackedTensorDict, published TensorDict",
        "`narrow` of a lazy stack gives",
        lazy,
    ),
    Rule(
        "repeat_interleave masked_select index_select",
        "kind: TensorDict, published LazyStackedTensorDict|values",
        "What torch answers in new memory is a copy",
        lazy,
    ),
    Rule(
        "merge_tensordicts to_dict masked_fill cat sorted",
        r"kind: done, published \w+Error",
        "A heterogeneous stack has no values to join",
        has("stack"),
    ),
    # ---- further situations
    Rule(
        "add",
        r"kind: done, published RuntimeError",
        "With a default or an intersection, a key that only one side has",
        has("intersection"),
    ),
    Rule(
        "flatten_keys sorted tolist to_dict",
        r"keys: \[\] more, \[.*\] fewer|kind: sequence, published dict",
        "With a default or an intersection, a key that only one side has",
        has("intersection"),
    ),
    Rule(
        "max min amax amin all any sum mean logsumexp norm",
        r"kind: NonTensor\w+, published (LazyStacked)?TensorDict|keys: \['s'\] more, \[\] fewer",
        "Words that compute hand non-tensors on",
        words,
    ),
    Rule(
        "max min",
        r"kind: done, published TypeError",
        "`keepdim=True` without `dim` keeps every dim",
        has("keepdim=True"),
    ),
    Rule(
        "amin amax max min",
        "kind: IndexError, published done|kind: done, published IndexError",
        "`reduce=True` goes with dims",
        has("reduce=True"),
    ),
    Rule(
        "sum mean prod std var amax amin nansum nanmean",
        "kind: TypeError, published done",
        "`keepdim=True` says nothing with",
        has("feature", "keepdim=True"),
    ),
    Rule(
        ALL_REDUCTIONS,
        "kind: LazyStackedTensorDict, published TensorDict",
        "Words that compute on each row keep a lazy stack lazy",
        both(lazy, has("feature")),
    ),
    Rule("flatten squeeze", "names|keys: .*|locked", "`flatten` and `squeeze` of dims that need no change", always),
    Rule(
        "update set write names batch_size",
        "keys: .*|names|batch|value",
        "`flatten` and `squeeze` of dims that need no change",
        has(r"flatten\(|squeeze\("),
    ),
    Rule(
        "squeeze permute roll pad",
        r"kind: done, published \w+Error",
        "Shape words take tensordicts with one dim",
        always,
    ),
    Rule(
        "square", r"kind: done, published AttributeError", "`2 ** td`, `index_select`, `relu` and `long` exist", always
    ),
    Rule(
        "separates clamp lock_ sorted",
        r"keys: \[\] more, \[.*\] fewer",
        "`separates` takes the keys that are named and no others",
        has("separates"),
    ),
    Rule(
        "set_",
        r"kind: done, published KeyError|kind: RuntimeError, published done",
        "`set_` of a nested tensordict writes what",
        always,
    ),
    Rule(
        "update_ set_ set_at_", r"kind: RuntimeError, published done", "An index that addresses more dims than", always
    ),
    Rule(
        "set_at_ update_at_",
        r"kind: (Runtime|Type|Key|Index)Error, published done",
        "An index that addresses more dims than",
        always,
    ),
    Rule(
        "rename_key_ merge_tensordicts",
        r"kind: RuntimeError, published done",
        "A leaf cannot be moved into a node with more batch dims",
        both(wide, always),
    ),
    Rule("merge_tensordicts", r"kind: RuntimeError, published done", "`apply` checks the batch size", has("apply")),
    Rule(
        "repeat_interleave masked_select roll write index maybe_dense_stack",
        r"kind: IndexError, published done",
        "A dim that is out of range is refused",
        always,
    ),
    Rule(
        "split view",
        r"kind: RuntimeError, published done",
        "`gather`, `permute`, `fliplr` and `rot90` refuse what torch refuses",
        always,
    ),
    Rule(
        "filter_empty_",
        r"kind: RuntimeError, published done",
        "Words that change keys refuse a locked tensordict",
        locked,
    ),
    Rule("bytes", "value", "`bytes` counts the members", lazy),
    Rule("maybe_dense_stack lazy_stack stack", "device|names", "The names and the device of a stack are those", always),
    Rule("rename names", "names|value", "The names and the device of a stack are those", lazy),
    Rule("read", "names", "`unflatten` gives the new dims no name", names),
    Rule("& | ^ ~ - abs neg", "names", "`broadcast_to`, comparisons and predicates keep names", names),
    Rule("& | ^ logical_and", r"kind: done, published TypeError", "Words that compute hand non-tensors on", words),
    Rule(
        "names batch_size",
        "value|batch|names",
        "`auto_batch_size_` of a tensordict without values",
        has("auto_batch_size_"),
    ),
    Rule("names", "value", "`broadcast_to`, comparisons and predicates keep names", both(names, has(" [=!<>]=? "))),
    Rule("auto_batch_size_", "batch|names", "`auto_batch_size_` of a lazy stack", lazy),
    Rule(
        "pop",
        "kind: value, published NonTensorData",
        "A non-tensor that is the same for all rows stays one value",
        words,
    ),
    Rule(
        "broadcast_to apply flatten flatten_keys cat stack unsqueeze merge_tensordicts permute sorted",
        r"kind: done, published \w+Error",
        "A heterogeneous stack has no values to join",
        has("stack"),
    ),
    Rule(
        "apply_ apply select set_at_ update_ any all rename unflatten broadcast_to reshape",
        r"values|keys: .*",
        "`torch.stack` of lazy stacks stacks them lazily",
        has("stack|unflatten|reshape", r"_\(|inplace=True"),
    ),
    Rule("cat", r"kind: done, published KeyError", "Words that compute keep nested tensordicts that are empty", bare),
    Rule("write index", r"kind: done, published RuntimeError", "An index that adds dims may be written to", always),
    Rule(
        "masked_fill mean max min prod all any sum std var",
        r"kind: done, published RuntimeError",
        "A reduction of a lazy stack without tensors",
        both(bare, always),
    ),
    Rule(
        "expand unsqueeze",
        r"kind: done, published RuntimeError",
        "The names and the device of a stack are those",
        has("device="),
    ),
    Rule("sorted", "keys: .*", "`empty(recurse=True)` keeps no values at all", has("recurse=True")),
    Rule("auto_batch_size_", r"kind: done, published RuntimeError", "`auto_batch_size_` of a lazy stack", lazy),
    Rule(
        "broadcast_to expand masked_fill where",
        r"kind: RuntimeError, published done",
        "`gather`, `permute`, `fliplr` and `rot90` refuse what torch refuses",
        always,
    ),
    Rule(
        "cat split_keys", r"kind: KeyError, published done", "A key that only some members of a lazy stack have", lazy
    ),
    Rule(
        "maybe_dense_stack stack cat",
        r"kind: TensorDict, published LazyStackedTensorDict",
        "Words that compute keep nested tensordicts that are empty",
        bare,
    ),
    Rule(
        "named_apply apply",
        r"kind: value, published TensorDict",
        "With a default or an intersection, a key that only one side has",
        has("intersection"),
    ),
    Rule(
        "names", r"keys: .*", "`amax`, `amin` and `prod` over several dims reduce all", has(r"(amin|amax|prod)\(dim=\(")
    ),
    Rule(
        "new_full new_zeros new_ones new_empty",
        r"kind: NonTensorData, published TensorDict",
        "Words that compute hand non-tensors on",
        words,
    ),
    Rule("pad", "names|values", "`pad` of a lazy stack keeps names", lazy),
    Rule(
        "set write update",
        r"kind: done, published RuntimeError",
        "The result of a word that computes is not locked",
        locked,
    ),
    Rule(
        "set_at_ write",
        r"kind: done, published \w+Error",
        "A number or a tensor that is written to rows leaves non-tensors",
        words,
    ),
    Rule("", r"kind: NonTensorStack, published NonTensorData", "A stack of non-tensors is a column", words),
    Rule(
        "create_nested",
        "kind: Tensor, published TensorDict",
        "`transpose`, `movedim` and their kin return a new",
        still,
    ),
    Rule("amax amin prod", "names", "A nested tensordict that has names of its own keeps them", names),
    Rule("stack lazy_stack maybe_dense_stack", "values", "Words that compute hand non-tensors on", words),
    Rule("to_dict", "kind: sequence, published dict", "Words that compute hand non-tensors on", both(words, lazy)),
    Rule(
        "addcmul",
        r"kind: done, published NotImplementedError",
        "`where` gives the dtype that torch gives",
        has("where"),
    ),
    Rule("apply", r"keys: \['s'\] more, \[\] fewer", "Words that compute hand non-tensors on", words),
    Rule(
        "fill_",
        r"kind: RuntimeError, published done",
        "`gather`, `permute`, `fliplr` and `rot90` refuse what torch refuses",
        has("expand"),
    ),
    Rule("get_item_shape", "value", "`auto_batch_size_` of a lazy stack", has("auto_batch_size_")),
    Rule("is_empty numel", "value", "Non-tensors of a stack without rows are no values", words),
    Rule("is_locked", "values", "`torch.stack` of lazy stacks stacks them lazily", has("reshape|stack", "update_at_")),
    Rule(
        "numel len",
        "value|values",
        "`amax`, `amin` and `prod` over several dims reduce all",
        has(r"(amin|amax|prod)\(dim=\("),
    ),
    Rule("list", r"batch|keys: .*|shape", "`atleast_3d` puts new dims where torch puts them", has("atleast_3d")),
    Rule("mod", "kind: TensorDict, published value", "`2 ** td`, `index_select`, `relu` and `long` exist", always),
    Rule(
        "pow add sub mul div + - * / **",
        r"kind: RuntimeError, published done",
        "A heterogeneous stack has no values to join",
        has("stack"),
    ),
    Rule("set_", "kind: TypeError, published done", "a value of another kind is a", always),
    Rule(
        "to_tensordict clone", "values", "`torch.stack` of lazy stacks stacks them lazily", has("stack", "apply|_\\(")
    ),
    Rule(
        "unbind",
        "kind: LazyStackedTensorDict, published TensorDict",
        "`torch.stack` of lazy stacks stacks them lazily",
        has("stack"),
    ),
    Rule(
        "unflatten_keys",
        r"kind: done, published RuntimeError",
        "A heterogeneous stack has no values to join",
        has("stack"),
    ),
    Rule("=", "names", "`broadcast_to`, comparisons and predicates keep names", both(names, has("~|[<>=!]=? "))),
    Rule("clear_device_", "device", "`torch.stack` of lazy stacks stacks them lazily", has("stack")),
    Rule("depth", "value", "Words that compute keep nested tensordicts that are empty", bare),
    Rule("flatten_keys", r"keys: .* more, \[\] fewer", "Words that compute hand non-tensors on", words),
    Rule("list pad", "values|value", "A stack of non-tensors is a column", words),
    Rule("softmax", "kind: TensorDict, published LazyStackedTensorDict", "`softmax` of a lazy stack gives", lazy),
    Rule("to_dict", "kind: value, published sequence", "Non-tensors of a stack without rows are no values", words),
    Rule(
        "apply_ apply",
        "kind: RuntimeError, published (done|ValueError)",
        "A heterogeneous stack has no values to join",
        lazy,
    ),
    Rule("batch_size", "kind: RuntimeError, published done", "What torch answers in new memory is a copy", lazy),
    Rule("repeat_interleave", r"kind: done, published \w+Error", "Shape words take tensordicts with one dim", always),
    # ---- what further seeds found
    Rule(
        "& | ^ apply named_apply mod",
        "kind: TensorDict, published value",
        "What has no tensors is a tensordict after a word that computes",
        bare,
    ),
    Rule(
        "movedim in",
        "kind: IndexError, published done|value",
        "What has no tensors is a tensordict after a word that computes",
        both(bare, has(r"apply|mod\(")),
    ),
    Rule(
        "densify pop",
        r"keys: \['s'\] more, \[\] fewer|kind: (value|TensorDict), published NonTensorData",
        "`flatten_keys` keeps the keys of some members only. So does `densify`",
        has("densify"),
    ),
    Rule(
        "set setdefault rename_key_ update del_ pop",
        r"kind: Tensor, published TensorDict|dtype|shape|values|keys: \[\] more, \['\w+'\] fewer",
        "`transpose`, `movedim` and their kin return a new",
        has(r"td = td(\[\.\.\.\]|\[:\]|\.densify\(\)|\.swap\w+\(.*\))\n\s*td = td.(set|rename|update|del|pop)"),
    ),
    Rule(
        "*= += -= apply_ apply zero_ set update rename_key_ update_at_ select",
        r"kind: \w+, published LazyStackedTensorDict|values|keys: .*",
        "`view`, `reshape`, `flatten`, `unflatten` and `expand` of a lazy stack join its values",
        both(
            lazy,
            has(r"view\(|reshape\(|flatten\(|expand\(", r"[*+-]= |_\(|inplace=True|update\(|set\("),
        ),
    ),
    Rule(
        "+=",
        "kind: NonTensorStack, published Tensor|values",
        "`torch.stack` of lazy stacks stacks them lazily",
        both(lazy, has(r"stack\(\[td, ", r"update\(")),
    ),
    Rule(
        "fill_ += -= *=",
        "kind: RuntimeError, published done",
        "A word in place on values that were expanded is refused",
        has(r"expand\(|broadcast_to\("),
    ),
    Rule(
        "read",
        "kind: KeyError, published done",
        "A key that only some members of a lazy stack have is not a key of the stack",
        has("lazy_stack", r"\n\s*del td\["),
    ),
    Rule(
        "std var prod sum mean nansum nanmean",
        "kind: IndexError, published done",
        "`reduce=True` goes with dims",
        has("reduce=True"),
    ),
    Rule("merge_tensordicts", "batch|names", "Nested nodes keep their batch sizes", wide),
    Rule(
        "expand merge_tensordicts",
        "kind: NonTensorData, published (NonTensorStack|Tensor)|kind: TensorDict, published Tensor",
        "`merge_tensordicts` keeps the first value of a key",
        has("merge_tensordicts"),
    ),
    Rule(
        "reshape",
        "kind: TensorDict, published LazyStackedTensorDict",
        "A word that mixes the stack dim with others",
        lazy,
    ),
    Rule(
        "set",
        "kind: RuntimeError, published done",
        "A leaf cannot be moved into a node with more batch dims",
        both(wide, has(r'set\(\("n", ')),
    ),
    Rule(
        "to_tensordict",
        "names",
        "The names and the device of a stack are those",
        has("stack"),
    ),
    Rule("tolist", r"keys: .*", "`atleast_3d` puts new dims where torch puts them", has("atleast_3d")),
    Rule(
        "view lazy_stack stack unbind",
        "batch|names|shape|values|kind: IndexError, published done",
        "`auto_batch_size_` of a tensordict without",
        has("auto_batch_size_"),
    ),
    Rule(
        "+ - * / ** add sub mul div clamp_min clamp_max",
        "dtype|values",
        "A tensor of one number promotes the dtype of leaves without dims",
        has(r"leaf\(start", r"torch\.tensor\(2\)"),
    ),
    Rule(
        "empty",
        r"keys: \[\] more, \['(s|a|b|n|x|new|c)'(, '\w+')*\] fewer",
        "`empty(recurse=True)` keeps no values at all",
        both(words, has("recurse=True")),
    ),
    Rule("masked_select", "names", "`masked_select` keeps the name of the dim", names),
    Rule(
        "rename_key_",
        "dtype|values|keys: .*",
        "`torch.stack` of lazy stacks stacks them lazily",
        both(lazy, has(r"stack\(\[td, ")),
    ),
    Rule(
        "select",
        r"keys: \['\w+'(, '\w+')*\] more, \[\] fewer",
        "`select` of a key and of the node that holds it",
        has(r'select\(.*\("n", "\w+"\).*"n"|select\(.*"n", \("n", "\w+"\)'),
    ),
    Rule(
        "select",
        "kind: RuntimeError, published done",
        "A heterogeneous stack has no values to join",
        both(wide, has("stack", "inplace=True")),
    ),
    Rule(
        "split unbind",
        r"kind: done, published (Index|Value)Error",
        "Shape words take tensordicts with one dim",
        both(rows_of_nothing, words),
    ),
    Rule(
        "lazy_stack stack maybe_dense_stack + - * / cat write rename",
        "batch|values|names|kind: RuntimeError, published done",
        "What has no tensors is a tensordict after a word that computes",
        both(bare, has(r"apply\(lambda x: .*, batch_size=")),
    ),
    Rule(
        "nansum nanmean amax amin",
        "kind: done, published RuntimeError",
        "A reduction of a lazy stack without tensors",
        bare,
    ),
    Rule("rename_key_", "kind: TypeError, published done", "value of another kind is a", words),
    Rule(
        "sorted apply apply_ zero_ fill_ += *= -=",
        "kind: LazyStackedTensorDict, published TensorDict|values",
        "What torch answers in new memory is a copy",
        both(lazy, has(r"masked_select\(|narrow\(", r"[*+-]= |_\(|inplace=True")),
    ),
    Rule("update_at_", "values", "`torch.stack` of lazy stacks stacks them lazily", both(lazy, has(r"stack\(\[td, "))),
    Rule(
        "split_keys flatten_keys to_dict",
        r"keys: \['(n|s)'(, '\w+')*\] more, \[\] fewer|names",
        "Words that compute hand non-tensors on",
        both(words, has("new_zeros|new_ones|new_full|new_empty")),
    ),
    Rule(
        "stack",
        "kind: LazyStackedTensorDict, published TensorDict",
        "`torch.stack` of lazy stacks stacks them lazily",
        lazy,
    ),
    Rule("unsqueeze flatten permute", "names", "`unflatten` gives the new dims no name", has("names=", "unflatten")),
    Rule(
        "== != < <= > >=",
        "kind: RuntimeError, published done",
        "so is a value whose shape does not broadcast to what is there",
        both(rows_of_nothing, bare),
    ),
    Rule(
        "tolist",
        "values|value",
        "A number that is written to rows of a lazy stack reaches",
        both(lazy, has(r"td\[.*\] = [0-9]")),
    ),
    Rule(
        "write index",
        "kind: RuntimeError, published done",
        "what torch raises for a leaf is handed on",
        both(rows_of_nothing, has(r"bool|uint8|int64", r"torch\.tensor\(2\)")),
    ),
    Rule(
        "create_nested",
        "kind: LazyStackedTensorDict, published Tensor",
        "`torch.stack` of lazy stacks stacks them lazily",
        both(lazy, has(r"stack\(\[td, ")),
    ),
    Rule(
        "flatten_keys sorted",
        r"keys: \['n\.\w+'(, '\w+')*\] more, \[\] fewer",
        "`select` of a key and of the node that holds it",
        has(r'select\(.*\("n", "\w+"\).*"n"|select\("n", \("n", "\w+"\)'),
    ),
    Rule(
        "max min",
        "kind: IndexError, published done",
        "A dim that is out of range is refused",
        has(r"batch_size = \[\]"),
    ),
    Rule(
        "numpy",
        r"keys: \[\] more, .* fewer",
        "Non-tensors of a stack without rows are no values",
        both(words, rows_of_nothing),
    ),
    Rule(
        "reshape",
        "kind: done, published RuntimeError",
        "members differ, and no dense one exists, is the result a lazy stack of the same rows",
        both(lazy, rows_of_nothing),
    ),
    Rule(
        "softmax",
        "kind: done, published NotImplementedError",
        "A heterogeneous stack has no values to join",
        has("stack", "exclude"),
    ),
    Rule(
        "write index",
        "kind: RuntimeError, published done",
        "`select` of a key and of the node that holds it",
        has(r'select\("n", \("n", "\w+"\)|select\(\("n", "\w+"\), "n"'),
    ),
    Rule(
        "read index",
        "dtype|values",
        "What torch answers in new memory is a copy",
        has("lazy_stack", "masked_select"),
    ),
    Rule(
        "amin amax prod sum mean",
        "kind: RuntimeError, published done",
        "`reduce=True` with dims reduces these dims of all leaves at once",
        has("reduce=True", r"dim=\("),
    ),
    Rule(
        "numpy",
        "kind: value, published sequence",
        "A non-tensor that is the same for all rows stays one value",
        both(words, has("expand")),
    ),
    Rule(
        "rot90 new_zeros new_ones new_empty permute",
        "kind: Tensor, published TensorDict|names",
        "Comparisons compare non-tensors too",
        both(words, has(r"td [=!<>]=? ")),
    ),
    Rule("unsqueeze", "names", "`new_zeros` and its kin take no names over", has("names=", "new_")),
    Rule(
        "merge_tensordicts",
        r"kind: done, published \w+Error|keys: \[\] more, .* fewer",
        "`merge_tensordicts` keeps the first value of a key",
        always,
    ),
    Rule(
        "numpy",
        "kind: done, published RuntimeError",
        "A key that only some members of a lazy stack have is not a key of the stack",
        has("stack", "exclude"),
    ),
    Rule(
        "select setdefault create_nested rename_key_ del_ separates set write update pop",
        "kind: done, published RuntimeError",
        "The result of a word that computes is not locked",
        both(locked, has(r"roll\(|flip\(|repeat\w*\(|rot90|clone\(|[+*-] ")),
    ),
    Rule(
        "write index",
        "kind: RuntimeError, published done",
        "so is a value whose shape does not broadcast to what is there",
        both(bare, has(r"td\[.*\] = td")),
    ),
    Rule(
        "update_at_",
        "kind: done, published RuntimeError",
        "An index that adds dims may be written to",
        has(r"\[\]|\.\.\., \[\["),
    ),
    Rule(
        "write index update_at_",
        "kind: RuntimeError, published done",
        "what torch raises for a leaf is handed on",
        has("bool|uint8|int64|float64|complex64", r"td\[.*(==|tensor|numpy|range|\[)"),
    ),
    Rule(
        "update",
        "kind: unreadable, TypeError, published Tensor",
        "`torch.stack` of lazy stacks stacks them lazily",
        both(lazy, has(r"stack\(\[td, td\]")),
    ),
    Rule(
        "+ - * get_item_shape",
        r"batch|keys: .*|names|shape|values|value",
        "`amax`, `amin` and `prod` over several dims reduce all",
        has(r"(amin|amax|prod)\(dim=\([^\n]*\n[^\n]*$"),
    ),
    Rule(
        "maybe_dense_stack squeeze",
        "kind: LazyStackedTensorDict, published TensorDict",
        "`torch.stack` of lazy stacks stacks them lazily",
        both(lazy, has(r"stack\(\[td, ")),
    ),
    Rule(
        "named_apply apply",
        "kind: value, published LazyStackedTensorDict",
        "With a default or an intersection, a key that only one side has",
        has("intersection"),
    ),
    Rule(
        "rsub",
        "kind: RuntimeError, published done",
        "A heterogeneous stack has no values to join",
        both(lazy, has(r"stack\(\[td, ")),
    ),
    Rule(
        "set update select write",
        r"shape|values|dtype|names|keys: \[\] more, .* fewer|kind: \w+, published \w+",
        "`flatten` and `squeeze` of dims that need no change",
        has(r"(flatten|squeeze)\([^\n]*\n[^\n]*((set|update|select)\(|td\[\(?\")"),
    ),
    Rule(
        "sorted_keys flatten_keys",
        r"keys: \[\] more, .* fewer",
        "`separates` takes the keys that are named and no others",
        both(words, has("separates")),
    ),
    Rule(
        "mean",
        "kind: RuntimeError, published done",
        "what torch raises for a leaf is handed on",
        has("feature", "int64|uint8|bool"),
    ),
    Rule(
        "read key",
        r"keys: \[\] more, \['\w+'\] fewer",
        "`torch.stack` of lazy stacks stacks them lazily",
        both(lazy, has(r"stack\(\[td, ", r"del td\[")),
    ),
    Rule(
        "to_dict",
        r"keys: \[\] more, .* fewer|values",
        "Non-tensors of a stack without rows are no values",
        both(words, rows_of_nothing),
    ),
    Rule("set_at_", "values", "A number or a tensor that is written to rows leaves non-tensors", words),
    Rule("separates", "values", "A number or a tensor that is written to rows leaves", both(words, has(r"\] = \d"))),
    Rule(
        "squeeze", "batch|values", "A non-tensor that is the same for all rows stays one value", both(words, lazy, wide)
    ),
    Rule("addcmul", "kind: NotImplementedError, published done", "what torch raises for a leaf is handed on", lazy),
    Rule(
        "fill_ apply_ zero_ set_at_ exp_ abs_ neg_ add_ mul_ sub_ div_ pow_ += -= *= del_ update_ write",
        r"kind: TensorDict, published LazyStackedTensorDict|values|keys: \['\w+'\] more, \[\] fewer",
        "A word that mixes the stack dim with others",
        both(lazy, has("unflatten|reshape|flatten|view|expand|repeat|tile")),
    ),
    Rule("read del_ pop", r"keys: \['\w+'\] more, \[\] fewer", "`densify` of a dense one", has("densify")),
    Rule("softmax", "kind: RuntimeError, published done", "A heterogeneous stack has no values to join", lazy),
    Rule(
        "flip flipud fliplr roll rot90 tile repeat",
        r"kind: LazyStackedTensorDict, published TensorDict|kind: done, published \w+Error",
        "`flip`, `roll` and `rot90` take stacks whose members differ",
        lazy,
    ),
    Rule("requires_grad", "kind: done, published RuntimeError", "A heterogeneous stack has no values to join", lazy),
    Rule(
        "reshape flatten view",
        r"keys: \['\w+'(, '\w+')*\] more, \[\] fewer",
        "members differ, and no dense one exists, is the result a lazy stack of the same rows",
        lazy,
    ),
    Rule(
        "+= -= *=",
        "kind: RuntimeError, published done",
        "so is a value whose shape does not broadcast to what is there",
        both(bare, has("leaf")),
    ),
    Rule(
        "get",
        "kind: value, published NonTensor\\w+|values",
        "With a default or an intersection, a key that only one side has",
        has("intersection"),
    ),
    Rule(
        "int long float double bool half",
        "batch|locked",
        "What has no tensors is a tensordict after a word that computes",
        has(r"apply\(lambda x: .*, batch_size="),
    ),
    Rule(
        "new_full",
        r"kind: NonTensorStack, published (LazyStacked)?TensorDict",
        "Words that compute hand non-tensors",
        words,
    ),
    Rule(
        "setdefault",
        r"keys: \['\w+'\] more, \[\] fewer",
        "`flatten` and `squeeze` of dims that need no change",
        has(r"flatten\(|squeeze\("),
    ),
    Rule("masked_select", "kind: done, published RuntimeError", "What torch answers in new memory is a copy", lazy),
    Rule("+= -= *=", r"kind: done, published \w+Error", "What has no tensors is a tensordict after a word that", bare),
    Rule(
        "+= -= *= add_ mul_ sub_",
        "kind: RuntimeError, published done",
        "`torch.stack` of lazy stacks stacks them lazily",
        both(lazy, has(r"stack\(\[td, ")),
    ),
    Rule(
        "create_nested",
        r"kind: .*, published unreadable, \w+",
        "A heterogeneous stack has no values to join",
        lazy,
    ),
    Rule(
        "del_ pop rename_key_",
        "kind: done, published KeyError",
        "Words that compute keep nested tensordicts that are empty",
        bare,
    ),
    Rule("densify", r"kind: done, published \w+Error", "whose published form is lost", lazy),
    Rule(
        "quantile", "names", "The names and the device of a stack are those that the members share", both(lazy, names)
    ),
    Rule(
        "update_at_",
        "kind: done, published RuntimeError",
        "An index that adds dims may be written to",
        has(r"\(\.\.\., "),
    ),
    Rule(
        "sorted sorted_keys to_dict",
        r"keys: \[.*\] more, \[\] fewer|value",
        "`flip`, `roll` and `rot90` take stacks whose members differ",
        both(lazy, has(r"flip|roll|rot90|tile|repeat")),
    ),
    Rule(
        "filter_empty_",
        "kind: RuntimeError, published done",
        "A heterogeneous stack has no values to join",
        lazy,
    ),
    Rule("rename", "kind: RuntimeError, published done", "names that do not fit are a `RuntimeError`", bare),
    Rule("=", "kind: TypeError, published done", "`select` of a key and of the node that holds it", has(r"select\(")),
    Rule("cat", "names", "`torch.stack` of lazy stacks stacks them lazily", both(lazy, names)),
    Rule(
        "logsumexp logical_and add sub mul sorted_keys",
        r"kind: TensorDict, published value|keys: \['\w+'\] more, \[\] fewer",
        "What has no tensors is a tensordict after a word that computes",
        bare,
    ),
    Rule(
        "sorted_keys",
        r"keys: \['\w+'\] more, \[\] fewer",
        "What has no tensors is a tensordict after a word that computes",
        has(r"apply\(lambda x: .*, batch_size="),
    ),
    Rule("merge_tensordicts", r"keys: \['n'\] more, \[\] fewer", "`merge_tensordicts` keeps the first value", always),
    Rule(
        "update set",
        "dtype|shape|values",
        "`torch.stack` of lazy stacks stacks them lazily",
        both(lazy, has(r"stack\(\[td, td\]")),
    ),
    Rule(
        "pad where",
        r"batch|dtype|values|names|kind: NonTensorData, published NonTensorStack",
        "A nested tensordict with more batch dims than its parent keeps",
        both(wide, has("amax|amin|prod|max|min")),
    ),
    Rule("separates", "kind: done, published RuntimeError", "A heterogeneous stack has no values to join", lazy),
    Rule("set_", r"keys: \[.*\] more, \[\] fewer", "`set_` of a nested tensordict writes what it has", always),
    Rule(
        "flip flipud fliplr roll rot90 create_nested",
        r"values|keys: \[\] more, \['\w+'\] fewer|kind: TensorDict, published LazyStackedTensorDict",
        "What torch answers in new memory is a copy",
        both(lazy, has("repeat|masked_select|gather|index_select")),
    ),
    Rule(
        "update_at_",
        "kind: LazyStackedTensorDict, published TensorDict|values",
        "`narrow` of a lazy stack gives",
        both(lazy, has("narrow")),
    ),
    Rule(
        "read index", "kind: Tensor, published .*", "Comparisons compare non-tensors too", both(words, has(" [!=]= "))
    ),
    Rule(
        "read index",
        "kind: TensorDict, published LazyStackedTensorDict",
        "Non-tensors of a stack without rows are no values",
        both(lazy, bare),
    ),
    Rule(
        "amax amin max min",
        "kind: Tensor, published TensorDict|names",
        "`transpose`, `movedim` and their kin return a new",
        both(still, has("create_nested|set|update")),
    ),
    Rule(
        "write key set",
        "kind: RuntimeError, published done",
        "A leaf cannot be moved into a node with more batch dims than it has dims",
        wide,
    ),
    Rule(
        "mod logsumexp norm",
        r"kind: \w+, published value|kind: RuntimeError, published done",
        "What has no tensors is a tensordict after a word that computes",
        bare,
    ),
    Rule("merge_tensordicts", "shape|dtype|values", "`merge_tensordicts` keeps the first value", lazy),
    Rule(
        "split_keys separates",
        "kind: done, published KeyError",
        "members differ, and no dense one exists, is the result a lazy stack of the same rows",
        lazy,
    ),
    Rule("setdefault set", "kind: TypeError, published done", "value of another kind is a", words),
    Rule(
        "unlock_",
        "kind: done, published RuntimeError",
        "What torch answers in new memory is a copy",
        both(lazy, has("repeat|masked_select|gather|index_select")),
    ),
    Rule(
        "setdefault write key set",
        r"keys: \['\w+'\] more, \[\] fewer",
        "`torch.stack` of lazy stacks stacks them lazily",
        both(lazy, has(r"stack\(\[td, ")),
    ),
    Rule(
        "unbind write",
        "values",
        "`pad` leaves a non-tensor that is the same for all rows one value",
        both(words, has(r"pad\(")),
    ),
    Rule(
        "view reshape", "names", "The names of members that differ in names are those of the first", both(lazy, names)
    ),
    Rule("tile repeat", r"keys: \['\w+'\] more, \[\] fewer", "`flip`, `roll` and `rot90` take stacks", lazy),
    Rule(
        "softmax unflatten flatten",
        r"kind: done, published \w+Error|batch",
        "A heterogeneous stack has no values to join",
        lazy,
    ),
    Rule("names", "names", "`densify` of a dense one", has("densify")),
    Rule("split_keys", "kind: RuntimeError, published done", "A heterogeneous stack has no values to join", lazy),
    Rule("write key set", "names", "The names and the device of a stack are those that the members share", lazy),
    Rule("setdefault", "kind: RuntimeError, published done", "A leaf cannot be moved into a node with more", wide),
    Rule("tolist", r"dtype|kind: .*|values", "A heterogeneous stack has no values to join", lazy),
    Rule("min max", r"kind: .*", "`torch.stack` of lazy stacks stacks them lazily", both(lazy, has(r"stack\(\[td, "))),
    Rule(
        "unflatten",
        "kind: Tensor, published TensorDict|names",
        "`transpose`, `movedim` and their kin return a new",
        still,
    ),
    Rule("unflatten", r"keys: \['\w+'\] more, \[\] fewer", "members differ, and no dense one exists, is the", lazy),
    Rule("write key", "kind: Tensor, published .*", "`densify` of a dense one", has("densify")),
    Rule("update", "kind: RuntimeError, published done", "`auto_batch_size_` of a tensordict", has("auto_batch_size_")),
    Rule("set", "kind: Tensor, published TensorDict", "`transpose`, `movedim` and their kin return a new", still),
    Rule("quantile", r"kind: done, published \w+Error", "A reduction of a lazy stack without tensors", bare),
    Rule(
        "< <= > >= == !=",
        "kind: RuntimeError, published done",
        "so is a value whose shape does not broadcast to what is there",
        both(bare, has("leaf")),
    ),
    Rule(
        "flatten_keys",
        r"keys: \['\w+'(, '\w+')*\] more, \[\] fewer",
        "`flatten_keys(inplace=True)` leaves nested tensordicts that another one shares",
        has("inplace=True"),
    ),
    Rule(
        "pop",
        r"keys: \[\] more, \['\w+'\] fewer",
        "`torch.stack` of lazy stacks stacks them lazily",
        both(lazy, has(r"stack\(\[td, ")),
    ),
    Rule(
        "get_item_shape",
        "kind: KeyError, published done",
        "`separates` takes the keys that are named and no others",
        both(words, has("separates")),
    ),
    Rule(
        "list",
        "kind: LazyStackedTensorDict, published TensorDict",
        "`torch.stack` of lazy stacks stacks them lazily",
        both(lazy, has(r"stack\(\[td, ")),
    ),
    Rule(
        "broadcast_to expand",
        r"kind: LazyStackedTensorDict, published TensorDict|keys: .* more, \[\] fewer|dtype|names",
        "members differ, and no dense one exists, is the result a lazy stack of the same rows",
        has("lazy_stack|maybe_dense_stack"),
    ),
]


# Both sides raise, of different classes: what ours is, what the published one's is, of which words, and why.
ERRORS: list[tuple[str, str, str, str]] = [
    (
        "IndexError",
        "RuntimeError TypeError ValueError AttributeError KeyError",
        "all any sum mean std var prod amax amin nansum nanmean max min logsumexp quantile softmax "
        "cummax cummin cat stack "
        "lazy_stack maybe_dense_stack fliplr flipud rot90 flip roll gather index_select narrow "
        "select swapaxes swapdims "
        "transpose movedim moveaxis unsqueeze squeeze unbind split chunk tensor_split to_lazystack unflatten flatten "
        "repeat_interleave pad",
        "a dim that is not there is an `IndexError`",
    ),
    (
        "IndexError",
        "RuntimeError TypeError ValueError",
        "read write set_at_ get_at update_at_ masked_select",
        "a bad index is an `IndexError`",
    ),
    (
        "KeyError",
        "RuntimeError AttributeError TypeError",
        "stack maybe_dense_stack cat update_ merge_tensordicts addcmul lerp",
        "keys that differ are a `KeyError`",
    ),
    (
        "KeyError",
        "RuntimeError AttributeError TypeError ValueError IndexError",
        "set_ fill_ set_at_ get_at pop del_ read write rename_key_ select exclude separates "
        "get_item_shape stack_tensors "
        "cat_tensors split_keys update_at_",
        "a missing key is a `KeyError`",
    ),
    (
        "RuntimeError NotImplementedError TypeError IndexError",
        "RuntimeError NotImplementedError TypeError IndexError AttributeError ValueError",
        "gather index_select amax amin max min minimum maximum relu abs lerp addcmul & |"
        " ^ ~ >= <= < > sum prod std var quantile permute "
        "masked_select softmax logsumexp clamp clamp_max clamp_min sign tanh square "
        "abs_ neg_ exp_ add_ mul_ sub_ div_ pow_",
        "what torch raises for a leaf is handed on",
    ),
    (
        "RuntimeError",
        "ValueError IndexError TypeError",
        "names rename refine_names",
        "names that do not fit are a `RuntimeError`",
    ),
    (
        "RuntimeError",
        "ValueError KeyError TypeError AttributeError IndexError",
        "set set_ write update update_ replace setdefault cat stack cat_tensors stack_tensors "
        "merge_tensordicts get_item_shape",
        "shapes that do not fit are a `RuntimeError`",
    ),
    (
        "TypeError",
        "ValueError AttributeError RuntimeError IndexError",
        "set_ set_at_ update_ cat_tensors stack_tensors cat stack max min quantile select write",
        "a value of another kind is a `TypeError`",
    ),
    ("TypeError", "RuntimeError", "apply", "what the function of `apply` raises"),
    ("RuntimeError", "ValueError", "apply", "A word in place on values that were expanded is refused"),
    (
        "RuntimeError",
        "ValueError",
        "nanmean nansum mean sum amax amin prod",
        "A heterogeneous stack has no values to join",
    ),
    ("RuntimeError", "NotImplementedError", "densify", "whose published form is lost"),
    ("RuntimeError", "KeyError", "separates", "Words that change keys refuse a locked tensordict"),
    ("RuntimeError", "TypeError", "add nanmean nansum mean", "what torch raises for a leaf is handed on"),
    ("TypeError", "KeyError", "set_", "a value of another kind is a `TypeError`"),
    ("KeyError", "ValueError", "update_", "a missing key is a `KeyError`"),
]


def check() -> None:
    """Raise if a rule quotes what the page does not say."""
    page = " ".join(PAGE.read_text().split())
    lost = sorted({rule.why for rule in RULES if rule.why not in page} | {why for *_, why in ERRORS if why not in page})
    if lost:
        raise SystemExit(f"{PAGE.name} does not say: {lost}")


def said_of(word: str, those: str) -> bool:
    """Tell whether a word, such as `write index`, or its first part, is one of several."""
    return not {word, *word.split()}.isdisjoint(those.split())


def explained(word: str, what: str, text: str) -> str | None:
    """Return the sentence that explains what differs after a word in a program, or None."""
    for mine, theirs, said, why in ERRORS:
        pairs = re.fullmatch(r"kind: (\w+), published (\w+)", what)
        if pairs and pairs[1] in mine.split() and pairs[2] in theirs.split() and said_of(word, said):
            return why
    for rule in RULES:
        if (not rule.words or said_of(word, rule.words)) and re.fullmatch(rule.what, what) and rule.having(text):
            return rule.why
    return None
