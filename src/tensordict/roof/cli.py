"""The program `tensordict`, or `python -m tensordict`: what a dataset holds, whether it is whole, and copies of it."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tensordict._version import __version__
from tensordict.roof.homes import HOMES, SUFFIXES, Contents, Holding, Watch, home_at, home_for
from tensordict.storage.arrays import Terms

FAILED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        arguments: words of the command line; those of this process by default.

    Returns:
        The exit status: 0 when all is well, 1 for what is damaged or failed, 2 for a wrong command line.
    """
    given = _parser().parse_args(arguments)
    try:
        return int(given.run(given))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (OSError, ValueError, RuntimeError, TypeError, KeyError, ImportError) as error:
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        print(f"tensordict: {text}", file=sys.stderr)
        return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("tensordict", description="Look at, check and convert saved tensordicts.")
    parser.add_argument("--version", action="version", version=f"tensordict {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")
    info = verbs.add_parser("info", help="print keys, dtypes, shapes, bytes, layout and version; no value is read")
    info.add_argument("path", metavar="PATH", help="a folder, a consolidated file, an HDF5 file or a zarr store")
    info.set_defaults(run=_info)
    verify = verbs.add_parser("verify", help="read everything and compare it with its records and checksums")
    verify.add_argument("path", metavar="PATH")
    verify.add_argument("--quiet", action="store_true", help="print damage only")
    verify.set_defaults(run=_verify)
    convert = verbs.add_parser("convert", help="copy a dataset to another home")
    convert.add_argument("source", metavar="SRC")
    convert.add_argument("target", metavar="DST", help=f"the suffix tells the home: {', '.join(SUFFIXES)}, or a folder")
    convert.add_argument("--to", choices=sorted(HOMES), help="the home of DST, whatever its suffix")
    convert.add_argument("--force", action="store_true", help="replace what lies at DST")
    convert.add_argument("--quiet", action="store_true", help="show no progress")
    convert.add_argument(
        "--allow-pickle", action="store_true", help="load and save pickled objects, which can run code"
    )
    convert.add_argument(
        "--import", dest="modules", metavar="MODULE", action="append", default=[], help="a module that defines classes"
    )
    convert.set_defaults(run=_convert)
    return parser


# --- info


def _info(given: argparse.Namespace) -> int:
    print(_table(HOMES[home_at(given.path)].describe(given.path)))
    return 0


def _table(found: Contents) -> str:
    batch = "?" if found.batch is None else list(found.batch)
    layout = f", {found.layout}" if found.layout else ""
    lines = [f"{found.home}, version {found.version}, {found.kind}, batch size {batch}{layout}"]
    cells = [[_key(row), row.what, _shape(row), "" if row.nbytes is None else f"{row.nbytes:,}"] for row in found.rows]
    head = ["key", "dtype", "shape", "bytes"]
    widths = [max(map(len, column)) for column in zip(head, *cells)]
    for name, what, shape, size in [head, *cells]:
        row = f"{name:{widths[0]}}  {what:{widths[1]}}  {shape:{widths[2]}}  {size:>{widths[3]}}"
        lines.append(row.rstrip())
    total = sum(row.nbytes or 0 for row in found.rows)
    return "\n".join([*lines, f"{len(found.rows)} values, {total:,} bytes"])


def _key(row: Holding) -> str:
    return repr(row.key[0]) if len(row.key) == 1 else repr(row.key)


def _shape(row: Holding) -> str:
    return f"[{', '.join(map(str, row.shape))}]"


# --- verify


def _verify(given: argparse.Namespace) -> int:
    home = home_at(given.path)
    with _progress("verify", given.quiet) as watch:
        damage, note = HOMES[home].verify(given.path, watch)
    for line in damage:
        print(line, file=sys.stderr)
    if damage:
        print(f"tensordict: {given.path!r} is damaged: {len(damage)} of its files or values", file=sys.stderr)
        return FAILED
    if not given.quiet:
        print(f"{given.path}: whole; {note}")
    return 0


# --- convert


def _convert(given: argparse.Namespace) -> int:
    sys.path.insert(0, os.getcwd())
    for module in given.modules:
        importlib.import_module(module)
    target = given.to or home_for(given.target)
    if "://" not in given.target and os.path.lexists(given.target):
        if not given.force:
            raise FileExistsError(f"{given.target!r} exists; pass --force to replace it")
        if os.path.realpath(given.target) == os.path.realpath(given.source):
            raise ValueError(f"{given.source!r} cannot be converted onto itself")
    source = HOMES[home_at(given.source)].open(given.source, given.allow_pickle)
    with _progress("convert", given.quiet) as watch:
        HOMES[target].save(source, given.target, Terms(given.allow_pickle, watch=watch))
    if not given.quiet:
        print(f"{given.source} -> {given.target} ({target})")
    return 0


@contextmanager
def _progress(what: str, quiet: bool) -> Iterator[Watch]:
    """Yield what counts pieces in a bar, where there is a terminal and tqdm."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield bool
        return
    with tqdm(desc=what, unit=" values", disable=True if quiet else None) as bar:
        yield lambda name: bar.update()
