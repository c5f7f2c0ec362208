"""Check that this library and the published package open each other's folders.

    python tools/published.py INTERPRETER [FOLDER]

INTERPRETER is a Python that imports the published `tensordict`, on the same torch; FOLDER holds what it saved, if
there is anything: folders, HDF5 files (.h5), zarr stores (.zarr) and consolidated files (.memmap). Plain cases are
saved by each of the two and opened by both: keys, dtypes, shapes, values, batch sizes and names must be the same.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

SAVE = """
import sys, torch
from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDict, lazy_stack
folder = sys.argv[1]
dtypes = "bool uint8 int8 int16 int32 int64 float16 float32 float64 bfloat16 complex64 complex128".split()
plain = TensorDict({name: torch.arange(6).view(3, 2).to(getattr(torch, name)) for name in dtypes}, [3])
plain["empty"], plain["n"] = torch.ones(3, 0), TensorDict({"y": torch.arange(3), "deep": {"z": torch.ones(3, 1)}}, [3])
plain.memmap(f"{folder}/plain")
TensorDict({"s": torch.tensor(3.5), "z": torch.zeros(0, 2)}, []).memmap(f"{folder}/scalar")
TensorDict({"x": torch.ones(2, 3)}, [2, 3], names=["a", "b"]).memmap(f"{folder}/names")
TensorDict({"x": torch.ones(2), "one": "text", "each": NonTensorStack("a", "b")}, [2]).memmap(f"{folder}/objects")
lazy_stack([TensorDict({"p": torch.full((n, 2), float(n))}) for n in (1, 0, 3)]).memmap(f"{folder}/lazy")
TensorDict({"a.b": torch.ones(2), "a/b": torch.zeros(2), "UP": torch.ones(2)}, [2]).memmap(f"{folder}/keys")
"""
READ = """
import json, sys, torch
from tensordict import TensorDict, tensorclass
@tensorclass
class Sample:  # what a folder may name
    features: torch.Tensor
    label: torch.Tensor
    note: str
def show(td):
    if hasattr(td, "tensordicts"):
        return [show(member) for member in td.tensordicts]
    found = {"": [list(td.batch_size), list(td.names)]}
    for key in sorted(td.keys()):
        value = td.get(key)
        if isinstance(value, torch.Tensor):
            bits = value.reshape(-1).contiguous().view(torch.uint8).tolist() if value.numel() else []
            found[key] = [str(value.dtype), list(value.shape), bits]
        elif hasattr(value, "tolist") and type(value).__name__.startswith("NonTensor"):
            found[key] = value.tolist()
        else:
            found[key] = show(value) if hasattr(value, "batch_size") else value
    return found
for path in sys.argv[1:]:
    try:
        if path.endswith(".memmap"):
            td = TensorDict.from_consolidated(path)
        elif path.endswith((".h5", ".zarr")):
            opened = TensorDict.from_h5 if path.endswith(".h5") else TensorDict.from_zarr
            td = opened(path, auto_batch_size=True, batch_dims=1).to_tensordict()
        else:
            td = TensorDict.load_memmap(path)
        print(json.dumps([path, show(td)], default=str))
    except Exception as error:
        print(json.dumps([path, f"{type(error).__name__}: {error}"]))
"""
CASES = ("plain", "scalar", "names", "objects", "lazy", "keys")


def run(interpreter: str, script: str, *arguments: str) -> str:
    """Run a script in an interpreter; ours finds this checkout, another one what is installed for it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if interpreter == sys.executable:
        environment["PYTHONPATH"] = str(pathlib.Path(__file__).resolve().parent.parent / "src")
    command = [interpreter, "-W", "ignore", "-c", script, *arguments]
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def compared(interpreter: str, folders: list[str]) -> int:
    """Print what each of the two reads differently from folders; return in how many."""
    ours, theirs = (
        {path: shown for path, shown in map(json.loads, run(python, READ, *folders).splitlines())}
        for python in (sys.executable, interpreter)
    )
    wrong = [path for path in folders if ours[path] != theirs[path] or isinstance(ours[path], str)]
    for path in wrong:
        print(f"{path}\n  ours   {json.dumps(ours[path])[:300]}\n  theirs {json.dumps(theirs[path])[:300]}")
    return len(wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("interpreter")
    parser.add_argument("folder", nargs="?")
    given = parser.parse_args()
    wrong = count = 0
    with tempfile.TemporaryDirectory() as temporary:
        for name, python in (("ours", sys.executable), ("theirs", given.interpreter)):
            os.mkdir(f"{temporary}/{name}")
            run(python, SAVE, f"{temporary}/{name}")
            folders = [f"{temporary}/{name}/{case}" for case in CASES]
            wrong, count = wrong + compared(given.interpreter, folders), count + len(folders)
        if given.folder:
            found = sorted(map(str, pathlib.Path(given.folder).iterdir()))
            wrong, count = wrong + compared(given.interpreter, found), count + len(found)
    print(f"{count - wrong} of {count} folders are read alike by both")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
