"""A YAML file and flags become one frozen dataclass; a mistake is found before a weight is loaded, with file and line."""

import argparse
import dataclasses
import difflib
import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from distillknob.rewards.errors import UserError
from distillknob.scripts.study.kinds import bare, describe, kind_at, leaves
from distillknob.scripts.study.yaml_text import Place, dump_text, read_file, read_text

T = TypeVar("T")

_FLAG = "override "  # destinations of override flags in a namespace begin so: no other flag's can
# Extra keys, loose types and NaN are refused. Dataclasses without a config of their own, nested ones too, take over that of the
# type around them: so the adapter is made for a tuple of one.
_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def load_config(cls: type[T], path: Path | None, overrides: Mapping[str, Any] = MappingProxyType({}), key: str | None = None) -> T:
    """The frozen dataclass `cls` from a YAML file (None: flags and defaults only), with overrides by dotted key.

    `key` names the one top-level section of the file to read; dotted overrides are then relative to that section.
    String overrides are read as YAML, except for fields that are strings (there only `null` is). A section that is given in
    part takes the rest from the defaults of its own class. Raises UserError, one line a problem: `FILE:LINE: dotted.key: what`.
    """
    raw, lines = ({}, {}) if path is None else read_file(path)
    where = "command line" if path is None else str(path)
    prefix: Place = ()
    if key is not None and path is not None:
        if not isinstance(raw.get(key), dict):
            sections = ", ".join(name for name in raw if isinstance(raw[name], dict))
            raise UserError(f"{where}: no section {key!r}; sections: {sections or 'none'}")
        raw, prefix = raw[key], (key,)
    strings = {dotted for dotted, _, kind in leaves(cls) if bare(kind) is str}
    flags: dict[Place, str] = {}
    for dotted, value in overrides.items():
        if isinstance(value, str) and (dotted not in strings or value == "null"):
            value = read_text(value, f"--{dotted}")[0]
        _put(raw, dotted, value)
        flags[tuple(dotted.split("."))] = f"--{dotted}"
    adapter: TypeAdapter[tuple[T]] = TypeAdapter(tuple[cls], config=_STRICT)  # type: ignore[arg-type, valid-type]
    try:
        return adapter.validate_json(json.dumps([raw], default=str))[0]
    except ValidationError as error:
        problems = []
        for details in error.errors():
            place, message = _problem(cls, details)
            problems.append(_line(place, message, where, prefix, lines, flags))
        raise UserError("\n".join(dict.fromkeys(problems))) from None


def _put(raw: dict[str, Any], dotted: str, value: Any) -> None:
    """Sets a dotted key, making the sections above it where they are missing or null."""
    *sections, last = dotted.split(".")
    for section in sections:
        if raw.get(section) is None:
            raw[section] = {}
        raw = raw[section]
        if not isinstance(raw, dict):
            raise UserError(f"--{dotted}: {section} is {_shown(raw)} here, not a section with keys")
    raw[last] = value


def _problem(cls: type, details: ErrorDetails) -> tuple[Place, str]:
    """Place and message of one finding of pydantic, in the words of the config's own types."""
    place = details["loc"][1:]
    if details["type"] == "unexpected_keyword_argument":
        valid = list(dataclasses.fields(kind_at(cls, place[:-1])[1]))
        names = [field.name for field in valid if field.init]
        close = difflib.get_close_matches(str(place[-1]), names, n=1)
        return place, f"unknown key; valid keys: {', '.join(names)}" + (f" (did you mean {close[0]}?)" if close else "")
    reached, kind = kind_at(cls, place)
    if details["type"] == "missing":
        return place, f"is missing; must be {describe(kind)}"
    if details["type"] == "value_error":  # __post_init__ raises ValueError("key: message")
        text = str(details["ctx"]["error"])
        head, _, rest = text.partition(": ")
        below = (*place, *head.split("."))
        return (below, rest) if rest and kind_at(cls, below)[0] == below else (place, text)
    if details["type"] == "json_invalid":
        return (), details["msg"]
    return reached, f"must be {describe(kind)}, not {_shown(details['input'])}"


def _line(place: Place, message: str, where: str, prefix: Place, lines: Mapping[Place, int], flags: Mapping[Place, str]) -> str:
    """One line for the user: the flag that set this key, else file and line of the key or of the nearest section above it."""
    for flag, name in flags.items():
        if place[: len(flag)] == flag or (flag[: len(place)] == place and (*prefix, *place) not in lines):
            inner = ".".join(map(str, place))
            return f"{name}: {message}" if f"--{inner}" == name else f"{name}: {inner}: {message}"
    full = (*prefix, *place)
    number = next((lines[full[:n]] for n in range(len(full), 0, -1) if full[:n] in lines), None)
    dotted = ".".join(map(str, full))
    return (where if number is None else f"{where}:{number}") + (f": {dotted}: {message}" if dotted else f": {message}")


def _shown(value: Any) -> str:
    """A value as the user wrote it, shortened."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else reprlib.repr(value)


def add_override_flags(parser: argparse._ActionsContainer, cls: type) -> None:
    """Adds `--dotted.key VALUE` for every field of the dataclass `cls`; help: metadata["help"], type and default."""
    for dotted, field, kind in leaves(cls):
        if field.default is not dataclasses.MISSING:
            default = f"default {_shown(field.default)}"
        elif field.default_factory is not dataclasses.MISSING:
            default = f"default {_shown(field.default_factory())}"
        else:
            default = "required"
        about = f"{field.metadata['help']}: " if "help" in field.metadata else ""
        parser.add_argument(
            f"--{dotted}",
            dest=_FLAG + dotted,
            metavar="VALUE",
            default=argparse.SUPPRESS,
            help=f"{about}{describe(kind)}; {default}".replace("%", "%%"),
        )


def overrides_from(namespace: argparse.Namespace) -> dict[str, str]:
    """The override flags that were given, as {dotted key: text}, for `load_config`."""
    return {name.removeprefix(_FLAG): value for name, value in vars(namespace).items() if name.startswith(_FLAG)}


def to_yaml(config: Any) -> str:
    """A resolved config as YAML text which `load_config` reads back to an equal dataclass."""
    return dump_text(dataclasses.asdict(config))
