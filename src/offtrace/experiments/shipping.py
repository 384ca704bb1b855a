"""Users' modules on their way to other machines: the files in which traces and environments of their own are defined.

Installed packages are not sent: the nodes of a cluster have their own.
"""

import sys
import sysconfig
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from offtrace import imports
from offtrace.agent.own_traces import is_reference
from offtrace.agent.spec import Plan

MAX_BYTES = 20 << 20
"""Most bytes of all files together."""

Files = dict[str, bytes]
"""Contents of files by their path from the folder in which Python finds them."""


def modules_of(specs: Iterable[Plan]) -> set[str]:
    """Return the modules that specs name: `my_module` in a trace or an environment `my_module:name`."""
    references = {spec.trace for spec in specs} | {spec.env.removeprefix("gymnasium/") for spec in specs}
    return {reference.partition(":")[0] for reference in references if is_reference(reference)}


def collect(modules: Iterable[str]) -> Files:
    """Return the files of modules, and of all modules in use that are in the same folders.

    A module that is missing here is left out: the nodes of a cluster may have it.
    """
    folders = set()
    for name in modules:
        with suppress(ValueError):
            imports.import_module(name)
            folders |= {path.parent for path in _paths(sys.modules[name.partition(".")[0]])}
    paths = {
        path
        for name, module in list(sys.modules.items())
        if "." not in name and name not in ("__main__", "offtrace")
        for path in _paths(module)
        if path.parent in folders - _installed()
    }
    files = {
        str(file.relative_to(path.parent)): file.read_bytes() for path in sorted(paths) for file in _inside(path)
    }
    size = sum(map(len, files.values()))
    if size > MAX_BYTES:
        raise ValueError(
            f"modules that are sent to a cluster must have at most {MAX_BYTES >> 20} MB together; "
            f"got {size >> 20} MB in {', '.join(sorted(path.name for path in paths))}. Install them on its nodes."
        )
    return files


def _paths(module: ModuleType) -> list[Path]:
    """Return the file of a module, or the folders of a package."""
    if hasattr(module, "__path__"):
        return [Path(folder).resolve() for folder in module.__path__]
    file = getattr(module, "__file__", None)
    return [Path(file).resolve()] if file else []


def _inside(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts]


def _installed() -> set[Path]:
    """Return the folders of installed packages and of Python itself."""
    return {Path(folder).resolve() for folder in sysconfig.get_paths().values()}


@contextmanager
def unpacked(files: Mapping[str, bytes]) -> Generator[None]:
    """Write files to a temporary folder, which Python searches first inside the block."""
    with TemporaryDirectory(prefix="offtrace-") as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            sys.path.remove(folder)
