"""YAML in and out: plain data only, the line of every key, no key twice, and numbers as people write them (1e-3)."""

import re
from pathlib import Path
from typing import Any

import yaml

from distillknob.rewards.errors import UserError

Place = tuple[str | int, ...]

_FLOAT = re.compile(r"[-+]?(?:(?:\d[\d_]*\.[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.(?:inf|nan))$", re.ASCII)


class _Loader(yaml.SafeLoader):
    """Safe, with YAML 1.2's few plain scalars: in 1.1 `1e-3` is text, `no` false, `010` eight and `1:30` ninety. No aliases."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - yaml's own class attribute, emptied for this class

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuses aliases: they can make a small file endless."""
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not used in configs", mark)
        return super().compose_node(parent, index)


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(?:~|null|)$"), ["~", "n", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(?:true|True|false|False)$"), list("tTfF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9][\d_]*)$", re.ASCII), list("-+0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


class _Dumper(yaml.SafeDumper):
    """Quotes what `_Loader` would read as a number."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def read_file(path: Path) -> tuple[dict[str, Any], dict[Place, int]]:
    """The mapping in a YAML file and the line of every key; raises UserError for whatever is not such a file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    value, lines = read_text(text, str(path))
    if value is None:
        raise UserError(f"{path}: is empty; must be a YAML mapping of keys to values")
    if not isinstance(value, dict):
        raise UserError(f"{path}: must be a YAML mapping of keys to values at the top, not a {type(value).__name__}")
    return value, lines


def read_text(text: str, where: str) -> tuple[Any, dict[Place, int]]:
    """The plain data in a YAML text and the line of every key in it; raises UserError that names `where` and the line."""
    lines: dict[Place, int] = {}
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return (None if node is None else _plain(loader, node, (), lines, where)), lines
    except UserError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark and not where.startswith("--") else ""
        raise UserError(f"{where}{line}: not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid YAML: {str(error).splitlines()[0]}") from None


def _plain(loader: _Loader, node: yaml.Node, place: Place, lines: dict[Place, int], where: str) -> Any:
    """Node -> dict, list or scalar; notes the line of each key and item, and refuses a key that is there already."""
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise UserError(f"{where}:{line}: a key must be a word, not a list or a mapping")
            below = (*place, key.value)
            if below in lines:
                raise UserError(f"{where}:{line}: {'.'.join(map(str, below))}: given twice; first on line {lines[below]}")
            lines[below] = line
            mapping[key.value] = _plain(loader, value, below, lines, where)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            lines[(*place, index)] = item.start_mark.line + 1
            items.append(_plain(loader, item, (*place, index), lines, where))
        return items
    return loader.construct_object(node, deep=True)


def dump_text(value: Any) -> str:
    """Plain data as YAML text, keys in the order given."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
