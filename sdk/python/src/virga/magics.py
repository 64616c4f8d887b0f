"""%vrun and %%vrun for notebooks. Only what IPython offers to every extension is used, and nothing of it is imported.

A cell of Python becomes a function without arguments whose globals are the notebook's: it travels as every function does, with the
globals that it uses; what it assigned comes back.
"""
from __future__ import annotations

import argparse
import ast
import dis
import shlex
import sys
import types
from typing import Any, Dict, List, NoReturn, Optional, Set, Tuple

from . import _codec
from ._options import Options
from ._pool import Pool
from ._task import CompletedTask, _Running
from .errors import VirgaError

_VALUE = "_virga_value"
_STORES = {"STORE_NAME", "STORE_GLOBAL"}
_pools: Dict[Tuple[str, float], Pool] = {}


# ---------------------------------------------------------------------- options


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise VirgaError(f"%vrun: {message}")


def _parser() -> argparse.ArgumentParser:
    p = _Parser(prog="%vrun", add_help=False, allow_abbrev=False,
                description="Runs a command, or a cell, on the cloud. The options are those of vrun, and:")
    for option, short in (("pool", "-P"), ("name", "-n"), ("cwd", "-C")):
        p.add_argument(short, f"--{option if option != 'cwd' else 'directory'}", dest=option)
    for option in ("gpus", "gpu-mem", "gpu-model", "cpus", "mem", "project", "max-cost", "image", "session"):
        p.add_argument(f"--{option}", dest=option.replace("-", "_"))
    p.add_argument("--time", dest="time_limit")
    p.add_argument("--priority", type=int)
    p.add_argument("--preemptible", action="store_true")
    p.add_argument("--env", dest="environment")
    p.add_argument("-e", dest="env", action="append", metavar="KEY=V")
    p.add_argument("-l", "--label", dest="labels", action="append", metavar="K=V")
    p.add_argument("--secret", dest="secrets", action="append")
    p.add_argument("--sh", action="store_true", help="the cell is for the shell")
    p.add_argument("--idle", type=float, default=60.0, help="how long the cell's process stays for the next cell, in seconds (60)")
    p.add_argument("-h", "--help", action="store_true", help="show this")
    p.add_argument("command", nargs=argparse.REMAINDER)
    return p


def _pairs(words: Optional[List[str]]) -> Optional[Dict[str, str]]:
    for word in words or ():
        if "=" not in word:
            raise VirgaError(f"%vrun: '{word}' is not of the form KEY=VALUE")
    return dict(word.split("=", 1) for word in words) if words else None


def parse(line: str) -> Tuple[Options, argparse.Namespace]:
    """The words behind %vrun: what is asked for, and the rest."""
    said = _parser().parse_args(shlex.split(line))
    if said.command[:1] == ["--"]:
        del said.command[0]
    words = {name: value for name, value in vars(said).items() if name in Options.__dataclass_fields__}
    words.update(env=_pairs(said.env), labels=_pairs(said.labels))
    return Options(**words), said


# ---------------------------------------------------------------------- a cell of Python


def _stored(code: types.CodeType) -> Set[str]:
    """Names that a cell makes or changes."""
    return {str(op.argval) for part in _codec._codes(code) for op in dis.get_instructions(part)
            if op.opname in _STORES and (part is code or op.opname == "STORE_GLOBAL")}


def _compile(cell: str) -> types.CodeType:
    """A cell as code; what its last line is worth is kept under a name."""
    tree = ast.parse(cell, "<vrun cell>")
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not cell.rstrip().endswith(";"):
        last = tree.body[-1]
        tree.body[-1] = ast.copy_location(ast.Assign([ast.Name(_VALUE, ast.Store(), lineno=last.lineno, col_offset=0)], last.value), last)
        ast.fix_missing_locations(tree)
    return compile(tree, "<vrun cell>", "exec")


def run_there(cell: types.FunctionType, names: List[str]) -> Tuple[bytes, List[str]]:
    """In the worker: runs a cell; what it made that can travel, and the names of what cannot."""
    space = cell.__globals__
    space.pop(_VALUE, None)
    exec(cell.__code__, space)  # noqa: S102 - that is what it is for
    made = {name: space[name] for name in names if name in space}
    stay = [] if _codec.can_travel(made) else [name for name, value in made.items() if not _codec.can_travel(value)]
    if _VALUE in stay:
        made[_VALUE] = _Shown(repr(made[_VALUE]))
        stay.remove(_VALUE)
    return b"".join(_codec.pack({name: value for name, value in made.items() if name not in stay})), stay


class _Shown:
    """Something that stayed there, as it shows itself."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def run_cell(cell: str, space: Dict[str, Any], options: Options, idle: float) -> Any:
    """Runs a cell on the cloud with a notebook's names; what its last line is worth."""
    code = _compile(cell)
    func = types.FunctionType(code, space, "cell")
    used = _codec._global_names(code)
    left = sorted(name for name in used if name in space and not _codec.can_travel(space[name]))
    func.__dict__[_codec.LEFT] = tuple(left)
    func.__module__, func.__qualname__ = "__main__", "<cell>"
    if left:
        print(f"virga: cannot be sent and stays here: {', '.join(left)}", file=sys.stderr)
    key = (repr(options), idle)
    pool = _pools.get(key)
    if pool is None or pool.closing:
        pool = _pools[key] = Pool(options if options.name else options.replace(name="cell"), 1, idle, what="the cell")
    call = pool.submit(pool.define(run_there, "the cell"), (func, sorted(_stored(code))), {}, "the cell")
    try:
        packed, stay = call.result()
    finally:
        call.cancel()
    if stay:
        print(f"virga: cannot be sent and stays there: {', '.join(stay)}", file=sys.stderr)
    made: Dict[str, Any] = _codec.unpack(bytearray(packed))
    value = made.pop(_VALUE, None)
    space.update(made)
    return value


# ---------------------------------------------------------------------- the magics


def load(shell: Any) -> None:
    """Gives a shell of IPython the magics."""
    def vrun(line: str, cell: Optional[str] = None) -> Any:
        """Runs a command, or a cell of Python (--sh: of the shell), on the cloud."""
        options, said = parse(line)
        if said.help:
            print(_parser().format_help())
            return None
        if cell is not None and not said.sh:
            if said.command:
                raise VirgaError(f"%%vrun: '{said.command[0]}' is no option; the cell is what runs (--sh: as a shell's)")
            return run_cell(cell, shell.user_ns, options, said.idle)
        command = ["sh", "-c", cell, "cell", *said.command] if cell is not None else said.command
        if not command:
            raise VirgaError("%vrun: no command given: try %vrun hostname")
        done: CompletedTask = _Running(command, None, None, False, True, None, options).wait()
        shell.user_ns["_exit_code"] = done.status
        if done.status:
            done.check()
        return None

    shell.register_magic_function(vrun, "line_cell", "vrun")
