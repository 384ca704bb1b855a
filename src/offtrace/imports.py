"""Users' own modules: found by a reference such as `my_module:MyTrace`, and imported only with consent.

Importing a module runs its code. A reference that a user types on the command line or passes in
Python is consent. One that is read from a file is not: call `check_consent` before importing it.
"""

import hashlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def split(reference: str) -> tuple[str, str]:
    """Return the module and the name in `module:name`; the name may have dots, slashes and dashes.

    >>> split("my_module:MyTrace"), split("games.grid:my/Grid-v0")
    (('my_module', 'MyTrace'), ('games.grid', 'my/Grid-v0'))
    """
    module, colon, name = reference.partition(":")
    if not colon or not MODULE.fullmatch(module) or not name or ":" in name:
        raise ValueError(f"a reference must look like `module:name`; got {reference!r}.")
    return module, name


def import_module(name: str, tell: Callable[[str], None] = lambda _: None) -> ModuleType:
    """Import a user's module, and tell which file was imported. The current folder is searched last."""
    is_new = name not in sys.modules
    _search_current_folder()
    importlib.invalidate_caches()  # the file may be a moment old
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ValueError(f"{name!r} needs a module that is not installed: {error}.") from error
        raise ValueError(
            f"there is no module {error.name!r}, neither installed nor in the current folder, {os.getcwd()!r}."
        ) from None
    except SystemExit as error:
        raise ValueError(f"a module must not exit when it is imported; {name!r} does.") from error
    except Exception as error:
        raise ValueError(f"{name!r} failed while it was imported: {type(error).__name__}: {error}.") from error
    if is_new:
        tell(f"Imported {name} from {getattr(module, '__file__', None) or 'a built-in module'}.")
    return module


def import_object(reference: str, tell: Callable[[str], None] = lambda _: None) -> Any:
    """Import the module of a reference, and return the object that it names."""
    module_name, name = split(reference)
    found: Any = import_module(module_name, tell)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            there = vars(sys.modules[module_name])
            words = [word for word in there if word[0] != "_" and not isinstance(there[word], ModuleType)]
            listed = ", ".join(sorted(words)) or "nothing"
            raise ValueError(f"module {module_name!r} has no {name!r}. It has: {listed}.") from None
    return found


def reference_to(value: Any) -> str:
    """Return the reference of a class or function; raise if another process could not import it.

    >>> reference_to(Path)
    'pathlib:Path'
    """
    module_name = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None)
    if module_name is None or name is None:
        raise ValueError(f"it must be a class or a function to be saved; got {value!r}.")
    if module_name == "__main__":
        raise ValueError(f"{name} is defined in a script or a notebook. To save it, move it to a module.")
    if "<" in name:  # <lambda>, or <locals> of a function
        raise ValueError(f"{name} has no name that can be imported. To save it, define it in a module with `def`.")
    return f"{_public_module(value, module_name, name)}:{name}"


def _public_module(value: Any, module_name: str, name: str) -> str:
    """Return the module, or the package that has the same object, if the module is private: pathlib._local."""
    package = module_name.partition("._")[0]
    if package != module_name and getattr(sys.modules.get(package), name, None) is value:
        return package
    return module_name


def source_hash(module: str) -> str:
    """Return a hash of the source file of a module: 16 hexadecimal digits, "" for one without a file.

    The module must be imported already. Files that it imports do not count.
    """
    file = getattr(sys.modules[module], "__file__", None)
    if file is None:
        return ""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]


def check_consent(reference: str, allowed: Collection[str], *, where: str) -> None:
    """Raise unless the module of a reference read from a file is among those that the user allowed.

    >>> check_consent("my_module:MyTrace", ["my_module"], where="the run")
    """
    module, _ = split(reference)
    if isinstance(allowed, str | bool):
        raise ValueError(f"`allow_import` must be a list of modules; got {allowed!r}.")
    if module not in allowed and reference not in allowed:
        raise ValueError(
            f"{where} names {reference!r}. Importing it runs the code of {module}. If you trust it, pass "
            f"`--allow-import {module}` (in Python `allow_import=[{module!r}]`)."
        )


def _search_current_folder() -> None:
    """Add the current folder at the end of the path, so that no file in it hides an installed module."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
