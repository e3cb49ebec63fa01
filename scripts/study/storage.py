"""What lies in a run folder: content hashes, done-markers, the swap of a new output for an old one, and the owner's lock."""

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any

from distillknob.rewards.errors import UserError
from distillknob.rewards.jsonl import parse_json, write_json

_COMPARED = 64 * 2**20
CODE = ("distillknob.rewards", "distillknob.eval", "distillknob.trainer")  # what a result depends on


def hash_file(path: Path) -> str:
    """sha256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_items(items: Iterable[tuple[str, str]]) -> str:
    """sha256 over (name, hash) pairs, in the order of the names."""
    return hashlib.sha256(json.dumps(sorted(items)).encode()).hexdigest()


def files_below(path: Path, pattern: str = "*") -> list[Path]:
    """All files of a folder and its subfolders, sorted; a file is its own list."""
    return sorted(p for p in path.rglob(pattern) if p.is_file()) if path.is_dir() else [path]


def hash_tree(path: Path) -> str:
    """sha256 over names (relative to `path`) and contents of all files of a folder; of a file's bytes if it is one."""
    if not path.is_dir():
        return hash_file(path)
    return hash_items((p.relative_to(path).as_posix(), hash_file(p)) for p in files_below(path))


def code_version() -> str:
    """sha256 over all Python files of the packages in CODE; imports none of them."""
    items = []
    for package in CODE:
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or []:
            root = Path(folder)
            items += [(f"{package}/{p.relative_to(root).as_posix()}", hash_file(p)) for p in files_below(root, "*.py")]
    return hash_items(items)


def check_output(output: Path, models: Mapping[str, Path]) -> None:
    """UserError where an output can't be made there, or would change one of the models (role -> folder) that it is made from."""
    for parent in output.absolute().parents:
        if parent.exists() and not parent.is_dir():
            raise UserError(f"--output: {output}: {parent} is a file, not a folder; name a place in a folder")
    for role, folder in models.items():
        if folder.is_dir() and output.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"--output: {output} lies in the {role}'s model folder {folder}; name a folder of its own")


def marker_path(run: Path, stage: str) -> Path:
    """Where the done-marker of a stage lies; the name may have slashes."""
    return run / ".stages" / f"{stage}.json"


def read_marker(run: Path, stage: str) -> dict[str, Any] | None:
    """The done-marker of a stage, or None where the stage never finished or the marker is damaged."""
    try:
        marker = parse_json(marker_path(run, stage).read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError, RecursionError):
        return None
    return marker if _is_whole(marker) else None


def _is_whole(marker: Any) -> bool:
    """Whether a marker has its keys, of the right kinds, and names files of its own target only: another run's may come from
    anywhere, and what it names is copied."""
    kinds: dict[str, Any] = {"fingerprint": str, "target": str, "outputs": dict, "seconds": (int, float)}
    if not isinstance(marker, dict) or not all(isinstance(marker.get(key), kind) for key, kind in kinds.items()):
        return False
    for name, noted in marker["outputs"].items():
        path = PurePosixPath(name)
        if not path.is_relative_to(marker["target"]) or ".." in path.parts or not isinstance(noted, dict):
            return False
        if not isinstance(noted.get("sha256"), str) or not isinstance(noted.get("bytes"), int):
            return False
    return True


def read_markers(run: Path) -> dict[str, dict[str, Any]]:
    """The done-markers of all stages of a run, by stage name."""
    root = run / ".stages"
    names = [p.relative_to(root).as_posix().removesuffix(".json") for p in sorted(root.rglob("*.json"))]
    return {name: marker for name in names if (marker := read_marker(run, name)) is not None}


def is_finished(run: Path, marker: dict[str, Any] | None, target: str, fingerprint: str) -> bool:
    """Whether a marker says so, for this fingerprint, and every output is there as noted in it.

    Contents are compared up to 64 MiB a file, above that the size alone: a study of large models must not read them all again.
    """
    if marker is None or marker["fingerprint"] != fingerprint or marker["target"] != target:
        return False
    return bool(marker["outputs"]) and all(_is_as_noted(run / name, noted) for name, noted in marker["outputs"].items())


def _is_as_noted(path: Path, noted: dict[str, Any]) -> bool:
    if not path.is_file() or path.stat().st_size != noted["bytes"]:
        return False
    return bool(noted["bytes"] > _COMPARED or hash_file(path) == noted["sha256"])


def publish(run: Path, stage: str, target: str, output: Path, marker: dict[str, Any]) -> None:
    """Puts a finished output in the place of the old one and writes the stage's marker, with the hashes of its own files.

    The old marker goes first: cut off at any point, the stage counts as not finished, and no path ever shows half an output.
    """
    final = run / target
    outputs = {}
    for path in files_below(output):
        name = (Path(target) / path.relative_to(output)).as_posix()
        outputs[name] = {"sha256": hash_file(path), "bytes": path.stat().st_size}
    marker_path(run, stage).unlink(missing_ok=True)
    final.parent.mkdir(parents=True, exist_ok=True)
    if final.is_dir() or (output.is_dir() and final.exists()):
        final.replace(output.with_name(f"{output.name}.old"))  # the caller removes the folder that holds both
    output.replace(final)
    write_json(marker_path(run, stage), {**marker, "target": target, "outputs": outputs})


def adopt(source: Path, run: Path, stage: str, marker: Mapping[str, Any]) -> bool:
    """Copies the output of a stage that another run has finished, and publishes it here under the same marker.

    False, with nothing published, where the copy isn't what the marker notes: the other run may be at work, or damaged.
    """
    temporary = run / ".work" / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    holder = Path(tempfile.mkdtemp(dir=temporary))
    output = holder / Path(marker["target"]).name
    try:
        for name, noted in marker["outputs"].items():
            copy = output / Path(name).relative_to(marker["target"])
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copy(source / name, copy)
            except FileNotFoundError:
                return False
            if hash_file(copy) != noted["sha256"]:
                return False
        kept = {key: value for key, value in marker.items() if key not in ("target", "outputs")}
        publish(run, stage, marker["target"], output, kept)
    finally:
        clear(holder)
    return True


def clear(folder: Path) -> None:
    """Removes a folder, if it is there."""
    if folder.exists():
        shutil.rmtree(folder)


class RunLock:
    """`with RunLock(run):` makes this process the one owner of a run folder; UserError names the process that owns it already.

    The lock belongs to the process, not to the file: it ends with its owner, however that ends, and the file stays.
    """

    def __init__(self, run: Path) -> None:
        self.run = run

    def __enter__(self) -> None:
        self.run.mkdir(parents=True, exist_ok=True)
        self.file = (self.run / "lock").open("a+")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.file.seek(0)
            owner = self.file.read().strip()
            self.file.close()
            raise UserError(f"{self.run}: in use by process {owner}; wait for it, or take another --output") from None
        self.file.truncate(0)
        self.file.write(f"{os.getpid()}\n")
        self.file.flush()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.file.truncate(0)
        self.file.close()
