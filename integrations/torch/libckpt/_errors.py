"""What goes wrong, as Python knows it."""

from __future__ import annotations

#: The codes of ckpt.h by name.
CODES = {
    1: "CANCELLED",
    2: "UNKNOWN",
    3: "INVALID_ARGUMENT",
    4: "DEADLINE_EXCEEDED",
    5: "NOT_FOUND",
    6: "ALREADY_EXISTS",
    7: "PERMISSION_DENIED",
    8: "RESOURCE_EXHAUSTED",
    9: "FAILED_PRECONDITION",
    10: "ABORTED",
    11: "OUT_OF_RANGE",
    12: "UNIMPLEMENTED",
    13: "INTERNAL",
    14: "UNAVAILABLE",
    15: "DATA_LOSS",
    16: "UNAUTHENTICATED",
}


class Error(RuntimeError):
    """An error of libckpt.

    ``code`` is the name of a gRPC code (``"DATA_LOSS"``), ``applied`` is True if the failed operation may have been
    applied all the same.
    """

    def __init__(self, message: str, code: str = "UNKNOWN", applied: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.applied = applied

    def __str__(self) -> str:
        text = f"{self.code}: {self.args[0]}"
        return text + " (it may have been applied)" if self.applied else text


class NotExpressible(Error, TypeError):
    """Something in the state that a checkpoint cannot hold, refused by name before anything is written."""

    def __init__(self, where: str, what: object, way_out: str) -> None:
        kind = what if isinstance(what, str) else type_name(what)
        super().__init__(f"{where}: {kind} cannot be saved: {way_out}", "INVALID_ARGUMENT", False)
        self.where = where


def type_name(value: object) -> str:
    kind = type(value)
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def from_library(code: int, applied: bool, message: str) -> Error:
    """For the extension module."""
    name = CODES.get(code, f"CODE_{code}")
    return Error(message[len(name) + 2 :] if message.startswith(name + ": ") else message, name, applied)
