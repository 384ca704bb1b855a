"""Compiled programs, kept for the next run: compiling is most of the processor time of a short one.

    ~/.cache/offtrace/programs/<jax version and processor>/     (or $XDG_CACHE_HOME/offtrace/…)

`OFFTRACE_CACHE` names another folder, or is `off`. Whoever sets `JAX_COMPILATION_CACHE_DIR` has chosen already. What
is there is run, so the folder is the user's own, and never one that came with results.
"""

import hashlib
import os
import platform
import shutil
import time
import warnings
from contextlib import suppress
from pathlib import Path

LARGEST = 1 << 30
"""Bytes; what was not used for the longest time goes first."""
OLDEST = 60 * 24 * 3600
"""Seconds after which programs of another version or processor are removed."""
HALF_WRITTEN = 60
"""Seconds after which a program that is not whole yet will never be: its process was killed."""


def keep() -> None:
    """From now on, in this process. A folder that cannot be written is no reason to fail."""
    given = os.environ.get("OFFTRACE_CACHE", "")
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or given == "off":
        return
    import jax

    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache", UserWarning)
    home = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offtrace"
    folder = home / "programs" / f"{jax.__version__}-{_processor()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tidy(folder)
    except OSError:
        return
    if folder.stat().st_uid != os.getuid() or not os.access(folder, os.W_OK):
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_max_size", LARGEST)  # with a limit JAX uses the folder under a lock
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def tidy(folder: Path) -> None:
    """Remove programs whose process was killed while writing, by which JAX stumbles, and what is out of date."""
    now = time.time()
    for program in folder.glob("*-cache"):
        note = program.with_name(f"{program.name.removesuffix('-cache')}-atime")  # written last
        with suppress(FileNotFoundError):
            if not note.exists() and now - program.stat().st_mtime > HALF_WRITTEN:
                program.unlink()
    for other in folder.parent.iterdir():
        if other != folder and now - other.stat().st_mtime > OLDEST:
            shutil.rmtree(other, ignore_errors=True)


def _processor() -> str:
    """Programs are made for one kind of processor, and a home may be shared by several."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    flags = [line for line in lines if line.startswith(("flags", "Features", "model name"))][:2]
    return hashlib.sha256("\n".join([platform.machine(), *flags]).encode()).hexdigest()[:12]
