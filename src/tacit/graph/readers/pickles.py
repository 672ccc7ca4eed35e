"""An interpreter for the few pickle instructions that planetoid files need.

Nothing is ever imported or called on behalf of the file: the constructors of numpy arrays, scipy
CSR matrices, lists and dictionaries are recognised by name and produce inert records, which
:func:`array_of` and :func:`rows_of` then check and convert. Every other name is refused. Python's
own ``pickle`` is not used, not even restricted: rebuilding an array through numpy would let the
file choose sizes and types.
"""

from __future__ import annotations

import pickletools
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tacit.errors import GraphError
from tacit.graph.readers.npz import sparse_rows

_NUMBERS = re.compile(r"^[<>|=]?[biuf][1248]$")


@dataclass
class _Record:
    """What the file asks to be built: the kind of thing, its arguments and its state."""

    kind: str
    arguments: tuple[Any, ...] = ()
    state: Any = None


@dataclass
class _Name:
    """An admitted constructor, by what it builds."""

    kind: str


@dataclass
class _Machine:
    """The stack, the memo, and the marks of the pickle language."""

    where: str
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def pop(self) -> Any:
        return self.stack.pop()

    def to_mark(self) -> list[Any]:
        for place in range(len(self.stack) - 1, -1, -1):
            if self.stack[place] is _MARK:
                items = self.stack[place + 1 :]
                del self.stack[place:]
                return items
        raise IndexError("no mark on the stack")


_MARK = object()
_ADMITTED = {
    "numpy.core.multiarray _reconstruct": "array",
    "numpy._core.multiarray _reconstruct": "array",
    "numpy ndarray": "type",
    "numpy dtype": "dtype",
    "scipy.sparse.csr csr_matrix": "csr",
    "scipy.sparse._csr csr_matrix": "csr",
    "scipy.sparse._csr csr_array": "csr",
    "collections defaultdict": "dict",
    "__builtin__ list": "list",
    "builtins list": "list",
    "__builtin__ dict": "dict",
    "builtins dict": "dict",
    "__builtin__ object": "type",
    "builtins object": "type",
    "copy_reg _reconstructor": "object",
    "copyreg _reconstructor": "object",
    "_codecs encode": "bytes",
    "__builtin__ bytes": "no bytes",
    "builtins bytes": "no bytes",
}


def parse(data: bytes, where: str) -> Any:
    """Runs a pickle made of plain data, numpy arrays and CSR matrices.

    Args:
        data: The file's contents.
        where: The file's name, for errors.

    Returns:
        Plain Python values, with records in the place of arrays and matrices.

    Raises:
        GraphError: The file is damaged or asks for anything else.
    """
    machine = _Machine(where)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # damaged text may hold odd escapes
            for opcode, argument, _ in pickletools.genops(data):
                if opcode.name == "STOP":
                    return machine.pop()
                _step(machine, opcode.name, argument)
    # pickletools is not written for hostile input, so its failures are of many kinds.
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise GraphError(f"{where} is damaged", why=str(error)[:200]) from error
    raise GraphError(f"{where} is truncated")


def array_of(value: Any, where: str) -> np.ndarray:
    """The numpy array a record describes, one- or two-dimensional and of numbers."""
    state = value.state if isinstance(value, _Record) and value.kind == "array" else None
    if not isinstance(state, tuple) or len(state) != 5:
        raise GraphError(f"{where} does not hold a numpy array where one is due")
    _, shape, dtype, fortran, raw = state
    if isinstance(raw, str):
        # Python 2 wrote bytes as text; each character is one byte.
        try:
            raw = raw.encode("latin1")
        except UnicodeEncodeError as error:
            raise GraphError(f"{where} holds an array that is not bytes") from error
    kind = _dtype(dtype, where)
    plain = isinstance(shape, tuple) and all(type(k) is int and k >= 0 for k in shape)
    if not plain or not 1 <= len(shape) <= 2 or not isinstance(raw, bytes):
        raise GraphError(f"{where} holds an array of shape {str(shape)[:40]}")
    count = shape[0] * (shape[1] if len(shape) == 2 else 1)
    if count * kind.itemsize != len(raw):
        raise GraphError(
            f"{where} lies about the size of an array",
            why=f"shape {shape} of {kind} needs {count * kind.itemsize:,} bytes, not {len(raw):,}",
        )
    flat = np.frombuffer(raw, dtype=kind)
    return flat.reshape(shape, order="F" if fortran is True else "C")


def rows_of(value: Any, where: str, max_bytes: int) -> np.ndarray:
    """The dense float32 matrix that a record of a CSR matrix or an array describes."""
    if not isinstance(value, _Record) or value.kind != "csr":
        matrix = array_of(value, where)
        if matrix.ndim != 2:
            raise GraphError(f"{where} must hold a matrix")
        return matrix.astype(np.float32)
    state = value.state if isinstance(value.state, dict) else {}
    shape = state.get("_shape", state.get("shape"))
    plain = isinstance(shape, tuple) and all(type(k) is int and k >= 0 for k in shape)
    if not isinstance(shape, tuple) or not plain or len(shape) != 2:
        raise GraphError(f"{where} holds a matrix without a shape")
    indptr, indices, data = (array_of(state.get(k), where) for k in ("indptr", "indices", "data"))
    return sparse_rows(indptr.astype(np.int64), indices, data, shape, where, max_bytes)


def _dtype(value: Any, where: str) -> np.dtype:
    if not isinstance(value, _Record) or value.kind != "dtype" or not value.arguments:
        raise GraphError(f"{where} holds an array without a type")
    code = value.arguments[0]
    order = value.state[1] if isinstance(value.state, tuple) and len(value.state) > 1 else "|"
    spelled = f"{order if order in ('<', '>') else ''}{code}"
    if not _NUMBERS.match(spelled):
        raise GraphError(f"{where} holds an array of {str(code)[:20]}, not numbers")
    try:
        return np.dtype(spelled)
    except TypeError as error:
        raise GraphError(f"{where} holds an array of {spelled}, not numbers") from error


def _step(machine: _Machine, name: str, argument: Any) -> None:
    if name in _CONSTANTS:
        machine.stack.append(_CONSTANTS[name])
    elif name in _LITERALS:
        machine.stack.append(argument)
    elif name in _STEPS:
        _STEPS[name](machine, argument)
    else:
        raise GraphError(
            f"{machine.where} asks for {name}, which no planetoid file needs",
            why="a pickle can run any program; Tacit reads plain arrays only",
            remedy="convert the file with a tool you trust, then load npz or tables",
        )


def _admit(machine: _Machine, name: str) -> None:
    kind = _ADMITTED.get(name)
    if kind is None:
        raise GraphError(
            f"{machine.where} asks to run {name.replace(' ', '.')[:80]}",
            why="a pickle can run any program; Tacit admits numpy arrays, CSR matrices, "
            "dictionaries and lists only",
            remedy="convert the file with a tool you trust, then load npz or tables",
        )
    machine.stack.append(_Name(kind))


def _call(machine: _Machine, _: object) -> None:
    arguments, callee = machine.pop(), machine.pop()
    if not isinstance(callee, _Name) or not isinstance(arguments, tuple):
        raise TypeError("a call of something that is not a constructor")
    if callee.kind == "dict":
        machine.stack.append({})
    elif callee.kind == "list":
        machine.stack.append([])
    elif callee.kind == "no bytes" and not arguments:
        machine.stack.append(b"")
    elif callee.kind == "bytes":
        machine.stack.append(str(arguments[0]).encode("latin1") if arguments else b"")
    elif callee.kind == "object":
        if not arguments or not isinstance(arguments[0], _Name):
            raise TypeError("an object without a class")
        machine.stack.append(_Record(arguments[0].kind))
    else:
        machine.stack.append(_Record(callee.kind, arguments))


def _build(machine: _Machine, _: object) -> None:
    state, target = machine.pop(), machine.stack[-1]
    if not isinstance(target, _Record):
        raise TypeError("a state for something that has none")
    target.state = state


def _append(machine: _Machine, items: list[Any]) -> None:
    if not isinstance(machine.stack[-1], list):
        raise TypeError("an item for something that is not a list")
    machine.stack[-1].extend(items)


def _set(machine: _Machine, items: list[Any]) -> None:
    target = machine.stack[-1]
    if not isinstance(target, dict) or len(items) % 2:
        raise TypeError("an item for something that is not a dictionary")
    for key, value in zip(items[::2], items[1::2], strict=True):
        # Only flat keys: hashing a nested tuple can be made to take for ever.
        if type(key) not in (int, str):
            raise TypeError("a dictionary key that is neither a number nor a text")
        target[key] = value


def _tuple(size: int) -> Callable[[_Machine, object], None]:
    def step(machine: _Machine, _: object) -> None:
        if len(machine.stack) < size:
            raise IndexError("the stack is too short")
        items = tuple(machine.stack[-size:])
        del machine.stack[-size:]
        machine.stack.append(items)

    return step


def _pair(machine: _Machine) -> list[Any]:
    value, key = machine.pop(), machine.pop()
    return [key, value]


def _dictionary(machine: _Machine) -> None:
    items = machine.to_mark()
    machine.stack.append({})
    _set(machine, items)


def _stack_global(machine: _Machine) -> None:
    attribute, module = machine.pop(), machine.pop()
    _admit(machine, f"{module} {attribute}")


_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "MARK": _MARK}
_CONSTANTS["EMPTY_TUPLE"] = ()
_LITERALS = frozenset(
    {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
    | {"STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
    | {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
)
_STEPS: dict[str, Callable[[_Machine, Any], object]] = {
    "PROTO": lambda machine, _: None,
    "FRAME": lambda machine, _: None,
    "POP": lambda machine, _: machine.pop(),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "LIST": lambda machine, _: machine.stack.append(machine.to_mark()),
    "DICT": lambda machine, _: _dictionary(machine),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.to_mark())),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "APPEND": lambda machine, _: _append(machine, [machine.pop()]),
    "APPENDS": lambda machine, _: _append(machine, machine.to_mark()),
    "SETITEM": lambda machine, _: _set(machine, _pair(machine)),
    "SETITEMS": lambda machine, _: _set(machine, machine.to_mark()),
    "GLOBAL": _admit,
    "STACK_GLOBAL": lambda machine, _: _stack_global(machine),
    "REDUCE": _call,
    "NEWOBJ": _call,
    "BUILD": _build,
    "MEMOIZE": lambda machine, _: machine.memo.__setitem__(len(machine.memo), machine.stack[-1]),
    **dict.fromkeys(
        ("PUT", "BINPUT", "LONG_BINPUT"),
        lambda machine, place: machine.memo.__setitem__(place, machine.stack[-1]),
    ),
    **dict.fromkeys(
        ("GET", "BINGET", "LONG_BINGET"),
        lambda machine, place: machine.stack.append(machine.memo[place]),
    ),
}
