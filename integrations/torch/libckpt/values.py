"""The value tree of docs/format/v1.md in Python: what comes back is equal in value and type, bit for bit.

None, bool, int, float, str, bytes, list, tuple and dict (with scalar keys), nested. Anything else is refused by name,
subclasses too: they would come back as something else.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from typing import Any, Dict, List

from ._errors import NotExpressible

DEPTH_MAX = 16
DIGITS_MAX = 4096
_INT64 = 1 << 63

WAY_OUT = (
    "give its state as numbers, strings, bytes, lists, tuples and dicts, or track an object that has state_dict() and "
    "load_state_dict() and returns such"
)


class Encoded:
    """A part that has been encoded under its own name."""

    __slots__ = ("node",)

    def __init__(self, value: Any, where: str, depth: int = 1) -> None:
        self.node = encode(value, where, depth)


def dumps(value: Any, where: str = "value") -> str:
    """Canonical JSON of `value`; NotExpressible names the part that has none."""
    return json.dumps(encode(value, where), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def loads(text: str) -> Any:
    return decode(json.loads(text))


def encode(value: Any, where: str = "value", depth: int = 0) -> Any:
    """`value` as what json.dumps spells canonically."""
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if kind is int:
        return _encode_int(value, where)
    if kind is float:
        return _encode_float(value)
    if kind is str:
        return _encode_str(value, where)
    if kind is bytes:
        return {"$b": base64.b64encode(value).decode("ascii")}
    if kind is Encoded:
        return value.node
    if depth >= DEPTH_MAX:
        raise NotExpressible(where, value, f"containers nest at most {DEPTH_MAX} deep (does it contain itself?)")
    if kind is list:
        return [encode(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if kind is tuple:
        return {"$t": [encode(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]}
    if kind is dict:
        return _encode_dict(value, where, depth)
    raise NotExpressible(where, value, WAY_OUT)


def _encode_int(value: int, where: str) -> Any:
    if -_INT64 <= value < _INT64:
        return value
    if value.bit_length() > 13600:  # some bits more than DIGITS_MAX digits, before str() refuses
        raise NotExpressible(where, "an int of more than 4096 digits", "store it as bytes")
    digits = str(value)
    if len(digits.lstrip("-")) > DIGITS_MAX:
        raise NotExpressible(where, "an int of more than 4096 digits", "store it as bytes")
    return {"$i": digits}


def _encode_float(value: float) -> Any:
    if math.isfinite(value) and (value != 0.0 or math.copysign(1.0, value) > 0):
        return value
    return {"$f": struct.pack(">d", value).hex()}


def _encode_str(value: str, where: str) -> Any:
    try:
        value.encode("utf-8")
        return value
    except UnicodeEncodeError:
        pass
    try:
        return {"$s": base64.b64encode(value.encode("utf-8", "surrogateescape")).decode("ascii")}
    except UnicodeEncodeError:
        raise NotExpressible(where, "a str with lone surrogates", "store it as bytes") from None


def _plain_key(key: Any) -> bool:
    if type(key) is not str or key.startswith("$"):
        return False
    try:
        key.encode("utf-8")
        return True
    except UnicodeEncodeError:
        return False


def _encode_dict(value: Dict[Any, Any], where: str, depth: int) -> Any:
    if all(_plain_key(key) for key in value):
        return {key: encode(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()}
    pairs: List[Any] = []
    for key, item in value.items():
        if type(key) not in (type(None), bool, int, float, str, bytes):
            raise NotExpressible(
                f"{where}: key {key!r}", key, "keys are None, bools, numbers, strings or bytes; use one of these"
            )
        pairs.append([encode(key, f"{where}: key {key!r}"), encode(item, f"{where}[{key!r}]", depth + 1)])
    return {"$d": pairs}


def decode(node: Any) -> Any:
    """The inverse of `encode`, on what json.loads returns."""
    if isinstance(node, list):
        return [decode(item) for item in node]
    if not isinstance(node, dict):
        return node
    if len(node) == 1:
        tag, content = next(iter(node.items()))
        if tag.startswith("$"):
            return _decode_tagged(tag, content)
    return {key: decode(item) for key, item in node.items()}


def _decode_tagged(tag: str, content: Any) -> Any:
    if tag == "$t":
        return tuple(decode(item) for item in content)
    if tag == "$b":
        return base64.b64decode(content, validate=True)
    if tag == "$d":
        return {decode(key): decode(item) for key, item in content}
    if tag == "$i":
        return int(content)
    if tag == "$f":
        return struct.unpack(">d", binascii.unhexlify(content))[0]
    if tag == "$s":
        return base64.b64decode(content, validate=True).decode("utf-8", "surrogateescape")
    raise ValueError(f"a value is tagged {tag!r}, which this version of libckpt does not know")
