"""The cache of compiled programs: compiling is most of the processor time of a short run.

    ~/.cache/offtrace/programs/<jax version and processor>/     (or $XDG_CACHE_HOME/offtrace/…)

`OFFTRACE_CACHE` is another folder, or `off`. `JAX_COMPILATION_CACHE_DIR` takes precedence. Cached
programs are executed, so the folder must belong to the user; it never comes with results.
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
"""Bytes of the cache; the least recently used programs are removed first."""
OLDEST = 60 * 24 * 3600
"""Seconds until programs of another version or processor are removed."""
HALF_WRITTEN = 60
"""Seconds until an incomplete program is removed: its process was killed."""


def enable() -> None:
    """Use the cache in this process. If its folder cannot be written, there is no cache, and no error."""
    given = os.environ.get("OFFTRACE_CACHE", "")
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or given == "off":
        return
    import jax

    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache", UserWarning)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offtrace"
    if given:
        home = Path(given)
    folder = home / "programs" / f"{jax.__version__}-{_processor()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tidy(folder)
    except OSError:
        return
    if folder.stat().st_uid != os.getuid() or not os.access(folder, os.W_OK):
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_max_size", LARGEST)  # a limit makes JAX lock the folder
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def tidy(folder: Path) -> None:
    """Remove outdated programs, and incomplete ones of killed processes, on which JAX fails."""
    now = time.time()
    for program in folder.glob("*-cache"):
        last_use = program.with_name(f"{program.name.removesuffix('-cache')}-atime")  # written last
        with suppress(FileNotFoundError):
            if not last_use.exists() and now - program.stat().st_mtime > HALF_WRITTEN:
                program.unlink()
    for other in folder.parent.iterdir():
        if other != folder and now - other.stat().st_mtime > OLDEST:
            shutil.rmtree(other, ignore_errors=True)


def _processor() -> str:
    """Return a fingerprint of the processor: programs fit only one kind, and machines may share a home."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    flags = [line for line in lines if line.startswith(("flags", "Features", "model name"))][:2]
    return hashlib.sha256("\n".join([platform.machine(), *flags]).encode()).hexdigest()[:12]
