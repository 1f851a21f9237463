"""Shards of a checkpoint are pickles, and a pickle may run any code: they are read only after a look at what they call.

DeepSpeed loads its shards with the full unpickler. Before it may, every instruction of the pickle inside is compared
with those that describe tensors, plain values and DeepSpeed's own bookkeeping. Nothing is unpickled for that.
"""

from __future__ import annotations

import pickletools
from pathlib import Path
from typing import Any

import torch

from lightning_nli.types import UserError

# What torch writes with pickle protocol 2. Left out on purpose: instructions that find a callable otherwise than by
# its name in the stream (STACK_GLOBAL, INST, OBJ, EXT1, ...). What REDUCE, BUILD and NEWOBJ work on is in `_CALLABLE`.
_STRUCTURE = ("PROTO", "STOP", "MARK", "POP", "POP_MARK", "DUP", "GLOBAL", "REDUCE", "BUILD", "NEWOBJ", "BINPERSID")
_NUMBERS = ("NONE", "NEWTRUE", "NEWFALSE", "INT", "LONG", "LONG1", "BININT", "BININT1", "BININT2", "BINFLOAT")
_TEXTS = ("BINUNICODE", "SHORT_BINSTRING", "BINSTRING")
_MEMO = ("BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT")
_CONTAINERS = ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "EMPTY_SET", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")
_FILLING = ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS")
_INSTRUCTIONS = frozenset({*_STRUCTURE, *_NUMBERS, *_TEXTS, *_MEMO, *_CONTAINERS, *_FILLING})

_TYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
_STORAGES = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
_CALLABLE = frozenset(
    {
        "collections OrderedDict",
        "torch Size",
        "torch device",
        "torch._utils _rebuild_tensor_v2",
        "torch._utils _rebuild_parameter",
        "torch._tensor _rebuild_from_type_v2",  # calls what the stream names, which is in this list as well
        "torch Tensor",
        "torch.nn.parameter Parameter",
        "torch.serialization _get_layout",
        "torch.storage UntypedStorage",
        *(f"torch {name}Storage" for name in _STORAGES),
        *(f"torch {name}" for name in _TYPES),
        "deepspeed.runtime.zero.config ZeroStageEnum",
        "deepspeed.runtime.fp16.loss_scaler LossScaler",
        "deepspeed.runtime.fp16.loss_scaler DynamicLossScaler",
        "deepspeed.utils.tensor_fragment fragment_address",
    }
)
_CODE_RECORDS = ("constants.pkl", "code/")  # of TorchScript archives, which torch.load would run


class Refused(UserError):  # noqa: N818 - the file is, by us
    """A file that would run code."""


def find_danger(path: Path) -> str | None:
    """What in a torch file is no plain tensor or value; None where all of it is.

    Raises:
        RuntimeError: the file is no torch file (torch's own words).
    """
    reader = torch._C.PyTorchFileReader(str(path))
    names = reader.get_all_records()
    foreign = [name for name in names if name.startswith(_CODE_RECORDS)]
    if foreign:
        return f"it holds program code ({foreign[0]})"
    if "data.pkl" not in names:
        return "it holds no data.pkl"
    return find_danger_in_pickle(reader.get_record("data.pkl"))


def find_danger_in_pickle(data: bytes) -> str | None:
    """The first instruction of a pickle that is not among the harmless ones, in words; None if there is none."""
    try:
        for instruction, argument, _ in pickletools.genops(data):
            if instruction.name not in _INSTRUCTIONS:
                return f"its pickle has the instruction {instruction.name}"
            if instruction.name == "GLOBAL" and argument not in _CALLABLE:
                return f"its pickle would call {str(argument).replace(' ', '.')}"
    except ValueError as error:
        return f"its pickle is broken ({error})"
    return None


def check_safe(path: Path) -> None:
    """Make sure that a torch file holds tensors and plain values only.

    Raises:
        Refused: it would run code.
        UserError: it is no torch file.
    """
    try:
        danger = find_danger(path)
    except (RuntimeError, OSError) as error:
        first_line = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(f"{path} is damaged or not ours: {first_line}") from None
    if danger is not None:
        raise Refused(f"{path} is refused: {danger}, which a checkpoint of ours never does; it was not loaded")


def load_checked(path: Path | str, map_location: Any = None) -> Any:
    """`torch.load` of a shard, after `check_safe` on the same file.

    Raises:
        UserError: as `check_safe`.
    """
    check_safe(Path(path))
    return torch.load(path, map_location=map_location, weights_only=False)
