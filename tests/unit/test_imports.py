"""Users' own modules: references, consent, and where they are searched."""

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from offtrace import imports


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A current folder of its own; modules and paths are as before afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_a_module_of_the_current_folder_is_imported_and_told(folder: Path) -> None:
    (folder / "my_own_module.py").write_text("class Thing:\n    part = 3\n")
    told: list[str] = []
    assert imports.import_object("my_own_module:Thing.part", told.append) == 3
    assert told == [f"Imported my_own_module from {folder / 'my_own_module.py'}."]
    imports.import_object("my_own_module:Thing", told.append)
    assert len(told) == 1  # it was imported already


def test_the_current_folder_is_searched_last(folder: Path) -> None:
    (folder / "colorsys.py").write_text("raise RuntimeError('the wrong file')\n")
    sys.modules.pop("colorsys", None)
    assert imports.import_module("colorsys").__file__ != str(folder / "colorsys.py")
    assert sys.path[-1] == str(folder)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("import no_such_module_at_all", "needs a module that is not installed: No module named 'no_such_module_at"),
        ("raise KeyError('x')", "'broken' failed while it was imported: KeyError: 'x'"),
        ("import sys; sys.exit(0)", "must not exit when it is imported; 'broken' does"),
        ("import os\ndef other(): pass", "module 'broken' has no 'Thing'. It has: other."),
    ],
)
def test_what_cannot_be_imported_says_why(folder: Path, source: str, text: str) -> None:
    (folder / "broken.py").write_text(source)
    with pytest.raises(ValueError) as raised:
        imports.import_object("broken:Thing")
    assert text in str(raised.value)


def test_a_module_that_is_not_there(folder: Path) -> None:
    with pytest.raises(ValueError, match="there is no module 'nowhere', neither installed nor in the current folder"):
        imports.import_module("nowhere")


@pytest.mark.parametrize("reference", ["name", ":name", "module:", "a:b:c", "1x:name", "../x:name", "a..b:name"])
def test_references_that_are_none(reference: str) -> None:
    with pytest.raises(ValueError, match="must look like `module:name`"):
        imports.split(reference)


def test_only_what_another_process_can_import_has_a_reference(folder: Path) -> None:
    def local() -> None: ...

    assert imports.reference_to(Path) == "pathlib:Path"
    for value, text in ((local, "no name that can be imported"), (lambda: 0, "no name"), (3, "class or a function")):
        with pytest.raises(ValueError, match=text):
            imports.reference_to(value)
    main = type("Mine", (), {"__module__": "__main__", "__qualname__": "Mine"})
    with pytest.raises(ValueError, match="defined in a script or a notebook"):
        imports.reference_to(main)


def test_the_hash_follows_the_source(folder: Path) -> None:
    file = folder / "my_hashed_module.py"
    file.write_text("x = 1\n")
    imports.import_module("my_hashed_module")
    first = imports.source_hash("my_hashed_module")
    assert len(first) == 16
    file.write_text("x = 2\n")
    assert imports.source_hash("my_hashed_module") != first


def test_a_name_from_a_file_needs_consent() -> None:
    with pytest.raises(ValueError, match=r"the run names 'evil:Trace'\. .* pass `--allow-import evil`"):
        imports.check_consent("evil:Trace", ["other", "evil2"], where="the run")
    imports.check_consent("evil:Trace", ["evil"], where="the run")
    imports.check_consent("evil:Trace", ["evil:Trace"], where="the run")
