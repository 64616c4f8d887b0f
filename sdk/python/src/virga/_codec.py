"""Values as bytes. Pickle, protocol 5, and beyond it what pickle does not do: functions and classes that no import finds
(of a notebook, a prompt, a script without a guard, lambdas, closures) travel by value, with the globals and closure cells that they use.

What an import finds travels as its name: the other side has the same files and the same Python (which is checked before anything
of this is read). A value that travels twice is one object there, and what comes back of it is the original here: namespaces
and classes have tokens that both sides know.

    packed value = u32 number of buffers, u64 length of each, the pickle, the buffers
"""
from __future__ import annotations

import ast
import builtins
import dataclasses
import dis
import enum
import importlib
import io
import marshal
import os
import pickle
import struct
import sys
import types
import uuid
import weakref
from typing import Any, Dict, FrozenSet, Iterator, List, Optional, Tuple

from ._frames import Buffer
from .errors import SerializationError

PYTHON = (sys.implementation.name, sys.version_info[:2])
BUFFERS_MAX = 1 << 20
_GLOBAL_OPS = {"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME"}
LEFT = "__virga_left__"  # an attribute of functions: globals that stay here
_ME = uuid.uuid4().hex[:12]  # whose tokens: this process's

_guarded: Dict[str, bool] = {}
_spaces: Dict[str, Dict[str, Any]] = {}  # token → globals of functions that came or went by value
_space_tokens: Dict[int, str] = {}  # id of such globals → token
_class_tokens: "weakref.WeakKeyDictionary[type, str]" = weakref.WeakKeyDictionary()
_classes: "weakref.WeakValueDictionary[str, type]" = weakref.WeakValueDictionary()


# ---------------------------------------------------------------------- what an import finds


def is_guarded(path: str) -> bool:
    """Whether a script says what is not to be done when it is imported: `if __name__ == "__main__":`."""
    known = _guarded.get(path)
    if known is None:
        try:
            with open(path, "rb") as f:
                body = ast.parse(f.read()).body
        except (OSError, SyntaxError, ValueError):
            body = []
        tests = [ast.walk(part.test) for part in body if isinstance(part, ast.If)]
        known = _guarded[path] = any(isinstance(n, ast.Name) and n.id == "__name__" for nodes in tests for n in nodes)
    return known


def main_path() -> Optional[str]:
    """The script that __main__ is, when it is one that can be imported again without starting everything again."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None or not os.path.isfile(path) or not is_guarded(path):
        return None
    return os.path.abspath(str(path))


def main_name() -> Optional[str]:
    """The module that __main__ is, of `python -m module`, when it can be imported again."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(spec, "name", None) if main_path() else None


def _find(module: types.ModuleType, qualname: str) -> Any:
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
        if found is None:
            return None
    return found


def found_by_import(obj: Any) -> bool:
    """Whether the other side finds the same function or class under its name."""
    name, qualname = getattr(obj, "__module__", None), getattr(obj, "__qualname__", "")
    if not name or "<" in qualname:
        return False
    if name in ("__main__", "__mp_main__") and not (main_path() or main_name()):
        return False
    module = sys.modules.get(name)
    if module is None or (module.__spec__ is None and not getattr(module, "__file__", None)
                          and name not in ("__main__", "__mp_main__")):
        return False
    found = _find(module, qualname)
    return found is obj or getattr(found, "__wrapped__", None) is obj


def _load_named(module: str, qualname: str) -> Any:
    """A function or class by name; of something decorated, what the decorator got."""
    found = _find(importlib.import_module(module), qualname)
    if found is None:
        raise SerializationError(f"module '{module}' has no '{qualname}' here: is it made only when the module is run as a script?")
    return found


def _load_wrapped(module: str, qualname: str) -> Any:
    return _load_named(module, qualname).__wrapped__


# ---------------------------------------------------------------------- functions


def can_travel(value: Any) -> bool:
    """Whether it can be sent."""
    try:
        _dump(value)
    except Exception:  # noqa: BLE001 - whatever a pickle raises
        return False
    return True


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


def _global_names(code: types.CodeType) -> FrozenSet[str]:
    return frozenset(op.argval for part in _codes(code) for op in dis.get_instructions(part) if op.opname in _GLOBAL_OPS)


def _submodules(code: types.CodeType, used: Dict[str, Any]) -> List[str]:
    """Of `import a.b`, the function's globals name only `a`: `a.b` has to be imported there, too."""
    words = {name for part in _codes(code) for name in part.co_names}
    found = []
    for value in used.values():
        if isinstance(value, types.ModuleType):
            prefix = value.__name__ + "."
            found += [name for name in list(sys.modules)
                      if name.startswith(prefix) and words.issuperset(name[len(prefix):].split("."))]
    return found


def _space_token(space: Dict[str, Any]) -> str:
    token = _space_tokens.get(id(space))
    if token is None:
        token = f"{_ME}-{len(_spaces)}"
        _spaces[token] = space  # kept: an id is reused when its object is gone
        _space_tokens[id(space)] = token
    return token


def _space(token: str, names: Dict[str, Any]) -> Dict[str, Any]:
    space = _spaces.get(token)
    if space is None:
        space = _spaces[token] = {"__builtins__": builtins, **names}
        _space_tokens[id(space)] = token
    return space


def _make_function(code: bytes, token: str, names: Dict[str, Any], closure: Optional[Tuple[Any, ...]]) -> types.FunctionType:
    return types.FunctionType(marshal.loads(code), _space(token, names), closure=closure)


def _fill_function(func: types.FunctionType, state: Dict[str, Any]) -> None:
    for name in state["modules"]:
        importlib.import_module(name)
    mine = state["token"].startswith(_ME)
    for name, value in state["globals"].items():
        if mine:  # it comes home: what it is called with here is what stands here now
            func.__globals__.setdefault(name, value)
        else:
            func.__globals__[name] = value
    for cell, value in state["cells"]:
        cell.cell_contents = value
    for name, value in state["attributes"].items():
        setattr(func, name, value)
    func.__dict__.update(state["dict"])


def _reduce_function(func: types.FunctionType) -> Any:
    if found_by_import(func):
        found = _find(sys.modules[func.__module__], func.__qualname__)
        if found is func:
            return NotImplemented
        return _load_wrapped, (func.__module__, func.__qualname__)
    code, space = func.__code__, func.__globals__
    left = func.__dict__.get(LEFT, ())
    used = {name: space[name] for name in _global_names(code) if name in space and name != "__builtins__" and name not in left}
    names = {name: space[name] for name in ("__name__", "__package__", "__file__") if name in space}
    cells = []
    for cell in func.__closure__ or ():
        try:
            cells.append((cell, cell.cell_contents))
        except ValueError:  # nothing in it yet
            pass
    token = _space_token(space)
    state = {
        "token": token, "globals": used, "modules": _submodules(code, used), "cells": cells, "dict": dict(func.__dict__),
        "attributes": {name: getattr(func, name) for name in ("__name__", "__qualname__", "__module__", "__doc__", "__defaults__",
                                                              "__kwdefaults__", "__annotations__")},
    }
    return _make_function, (marshal.dumps(code), token, names, func.__closure__), state, None, None, _fill_function


# ---------------------------------------------------------------------- classes


def _class_token(cls: type) -> str:
    token = _class_tokens.get(cls)
    if token is None:
        token = _class_tokens[cls] = f"{_ME}-{uuid.uuid4().hex[:12]}"
        _classes[token] = cls
    return token


def _remember_class(token: str, cls: type) -> type:
    _class_tokens[cls] = token
    _classes[token] = cls
    return cls


def _make_class(token: str, meta: Any, name: str, bases: Tuple[Any, ...], start: Dict[str, Any]) -> type:
    known = _classes.get(token)
    if known is not None:
        return known
    cls: type = types.new_class(name, bases, {"metaclass": meta}, lambda ns: ns.update(start))
    return _remember_class(token, cls)


def _fill_class(cls: type, state: Dict[str, Any]) -> None:
    if _class_tokens[cls].startswith(_ME):
        return  # it comes home: it is as it is here
    for name, value in state.items():
        try:
            setattr(cls, name, value)
        except (AttributeError, TypeError):
            if name not in ("__doc__", "__qualname__"):
                raise


def _make_enum(token: str, meta: Any, name: str, bases: Tuple[Any, ...], members: Dict[str, Any], start: Dict[str, Any]) -> type:
    known = _classes.get(token)
    if known is not None:
        return known
    space = meta.__prepare__(name, bases)
    for key, value in {**start, **members}.items():
        space[key] = value
    return _remember_class(token, meta(name, bases, space))


_NOT_STATE = {"__dict__", "__weakref__", "_abc_impl", "__slots__", "__abstractmethods__"}


def _reduce_class(cls: type) -> Any:
    if id(cls) in _TYPES:
        return _type_named, (_TYPES[id(cls)],)
    if cls.__module__ == "builtins" or found_by_import(cls):
        return NotImplemented
    own = dict(vars(cls))
    token, meta = _class_token(cls), type(cls)
    start = {name: own[name] for name in ("__module__", "__qualname__", "__slots__") if name in own}
    if isinstance(cls, enum.EnumMeta):
        members: Dict[str, Any] = {name: getattr(cls.__members__[name], "value") for name in cls.__members__}
        state = {name: value for name, value in own.items() if isinstance(value, types.FunctionType) and not name.startswith("_")}
        return _make_enum, (token, meta, cls.__name__, cls.__bases__, members, start), state, None, None, _fill_class
    slots = own.get("__slots__", ())
    hidden = _NOT_STATE | set(start) | ({slots} if isinstance(slots, str) else set(slots))
    state = {name: value for name, value in own.items()
             if name not in hidden and not isinstance(value, (types.GetSetDescriptorType, types.MemberDescriptorType))}
    if "__abstractmethods__" in own:  # while it was empty, everything of its bases was abstract in it
        state["__abstractmethods__"] = own["__abstractmethods__"]
    return _make_class, (token, meta, cls.__name__, cls.__bases__, start), state, None, None, _fill_class


# ---------------------------------------------------------------------- the rest


_SINGLETONS = {id(value): name for name, value in vars(dataclasses).items()
               if type(value).__module__ == "dataclasses" and not isinstance(value, type)}


# Types of the interpreter that say they are builtins, where nobody finds them.
_TYPES = {id(value): name for name, value in vars(types).items() if isinstance(value, type) and not hasattr(builtins, value.__name__)}


def _singleton(name: str) -> Any:
    return getattr(dataclasses, name)


def _type_named(name: str) -> Any:
    return getattr(types, name)


def _reduce_property(p: property) -> Any:
    return property, (p.fget, p.fset, p.fdel, p.__doc__)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is types.FunctionType:
            return _reduce_function(obj)
        if isinstance(obj, type):
            return _reduce_class(obj)
        if kind is types.ModuleType:
            return importlib.import_module, (obj.__name__,)
        if kind is types.CellType:
            return types.CellType, ()  # what is in it follows with the function
        if kind is property:
            return _reduce_property(obj)
        if kind is classmethod or kind is staticmethod:
            return kind, (obj.__func__,)
        if kind is types.MappingProxyType:
            return types.MappingProxyType, (dict(obj),)
        if id(obj) in _SINGLETONS:
            return _singleton, (_SINGLETONS[id(obj)],)
        return NotImplemented


def _dump(value: Any) -> Tuple[bytes, List[pickle.PickleBuffer]]:
    out = io.BytesIO()
    buffers: List[pickle.PickleBuffer] = []
    _Pickler(out, 5, buffer_callback=buffers.append).dump(value)
    return out.getvalue(), buffers


def _culprit(value: Any) -> str:
    """Which part of it cannot be sent, in words; '' when that is not to be seen."""
    func = getattr(value, "__func__", value)
    if not isinstance(func, types.FunctionType):
        return ""
    names = list(zip(func.__code__.co_freevars, func.__closure__ or ()))
    parts: List[Tuple[str, Any]] = [(f"the variable '{name}' around it", lambda c=cell: c.cell_contents) for name, cell in names]
    parts += [(f"the global '{name}' that it uses", lambda n=name: func.__globals__[n]) for name in sorted(_global_names(func.__code__))
              if name in func.__globals__]
    for words, get in parts:
        try:
            _dump(get())
        except Exception as e:  # noqa: BLE001 - whatever a pickle raises
            return f"{words} is what cannot: {e}"
    return ""


def pack(value: Any, what: str = "a value") -> List[Buffer]:
    """The value as buffers to write one after the other."""
    try:
        data, buffers = _dump(value)
        raw = [b.raw() for b in buffers]
    except RecursionError:
        raise SerializationError(f"{what} cannot be sent: it is nested too deeply") from None
    except Exception as e:
        raise SerializationError(f"{what} cannot be sent: {_culprit(value) or e}") from e
    lengths = [len(part) for part in raw]
    return [struct.pack(f"<I{len(raw) + 1}Q", len(raw), len(data), *lengths), data, *raw]


def unpack(packed: Buffer) -> Any:
    """The value again. Large parts of it lie in `packed` and are not copied."""
    view = memoryview(packed)
    try:
        (n,) = struct.unpack_from("<I", view)
        if n > BUFFERS_MAX:
            raise ValueError(f"{n} buffers")
        lengths = struct.unpack_from(f"<{n + 1}Q", view, 4)
    except (struct.error, ValueError) as e:
        raise SerializationError(f"this is not a packed value: {e}") from e
    at = 4 + 8 * (n + 1)
    if at + sum(lengths) != len(view):
        raise SerializationError("this is not a packed value: it is cut off")
    parts: List[memoryview] = []
    for length in lengths:
        parts.append(view[at:at + length])
        at += length
    return pickle.loads(parts[0], buffers=parts[1:])
