"""The types of a config dataclass in words, for error messages and for the help of flags."""

import dataclasses
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

_WORDS = {float: "a number", int: "a whole number", bool: "true or false", str: "a string", NoneType: "null", Any: "any value"}
_LIMITS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}", "multiple_of": "that is a multiple of {}"}
_LENGTHS = {"min_length": "(length ≥ {})", "max_length": "(length ≤ {})"}


def bare(kind: Any) -> Any:
    """A type without Annotated and without `| None`; a union of several other types stays as it is."""
    if get_origin(kind) is Annotated:
        return bare(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        others = [member for member in get_args(kind) if member is not NoneType]
        return bare(others[0]) if len(others) == 1 else kind
    return kind


def describe(kind: Any) -> str:
    """What a value of this type must be: "a number ≥ 0", "one of 'a', 'b'", "a list, each a string"."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return f"{describe(args[0])} {' and '.join(_constraints(args[1:]))}".rstrip()
    if origin in (Union, UnionType):
        return " or ".join(map(describe, args))
    if origin is Literal:
        return ("one of " if len(args) > 1 else "") + ", ".join(map(repr, args))
    if origin is tuple and args[-1] is not Ellipsis:
        return f"a list of {len(args)}: {', '.join(map(describe, args))}"
    if origin in (tuple, list):
        return f"a list, each {describe(args[0])}"
    if dataclasses.is_dataclass(kind):
        return f"a section with keys {', '.join(field.name for field in dataclasses.fields(kind) if field.init)}"
    if origin is dict:
        return f"a mapping, each value {describe(args[1])}"
    return _WORDS.get(kind, f"a {getattr(kind, '__name__', kind)}")


def _constraints(marks: tuple[Any, ...]) -> Iterator[str]:
    """Limits from pydantic.Field(...) or annotated_types, each in words."""
    for mark in marks:
        if isinstance(mark, FieldInfo):
            yield from _constraints(tuple(mark.metadata))
        else:
            for name, words in (_LIMITS | _LENGTHS).items():
                if getattr(mark, name, None) is not None:
                    yield words.format(getattr(mark, name))


def kind_at(kind: Any, place: tuple[str | int, ...]) -> tuple[tuple[str | int, ...], Any]:
    """(the part of `place` that could be followed, the type there); the way ends at a union and at an unknown key."""
    for depth, part in enumerate(place):
        inner = _inside(bare(kind), part)
        if inner is None:
            return place[:depth], kind
        kind = inner
    return place, kind


def _inside(kind: Any, part: str | int) -> Any:
    """The type of one field, item or value of a type; None where there is none."""
    args = get_args(kind)
    if dataclasses.is_dataclass(kind):
        return get_type_hints(kind, include_extras=True).get(str(part))
    if get_origin(kind) is dict:
        return args[1]
    if get_origin(kind) is list or (get_origin(kind) is tuple and args[-1] is Ellipsis):
        return args[0]
    if get_origin(kind) is tuple and isinstance(part, int) and part < len(args):
        return args[part]
    return None


def leaves(cls: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """(dotted key, field, type) of every field of a dataclass that is not a dataclass itself."""
    hints = get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        inner = bare(hints[field.name])
        if dataclasses.is_dataclass(inner):
            yield from leaves(inner, f"{prefix}{field.name}.")
        elif field.init:
            yield prefix + field.name, field, hints[field.name]
