"""The trained networks of a sweep, in files beside its store.

    results.sqlite              the store
    results.sqlite.policies/    a file per finished run, named by the fingerprint of its spec

A file is written whole, before its run is marked as done. It is in the format safetensors, with a
checksum in its header; reading it executes nothing. The folder may be deleted: only loading a
policy needs it.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from offtrace.agent import disk
from offtrace.experiments.encoding import fingerprint
from offtrace.writing import write_whole

FORMAT = "offtrace policy"
LARGEST_FILE = 1 << 30
"""Bytes of a file that is read."""


def networks_folder(store: Path) -> Path:
    """Return the folder of the trained networks of a store."""
    return store.with_name(store.name + ".policies")


def write_network(store: Path, spec: Mapping[str, Any], parameters: Mapping[str, np.ndarray], num_steps: int) -> None:
    """Write the trained network of a run; `spec` is its JSON. A file that exists is replaced."""
    folder = networks_folder(store)
    folder.mkdir(exist_ok=True)
    key = fingerprint(spec)
    arrays = {name: np.ascontiguousarray(value) for name, value in parameters.items()}
    record = {"format": FORMAT, "fingerprint": key, "num_steps": str(num_steps), "sha256": _checksum(arrays)}
    # Not synced, as there may be thousands: after a power failure a file may be damaged, which its checksum shows.
    write_whole(folder / f"{key}.safetensors", [save(arrays, record)])


def remove_networks(store: Path) -> None:
    """Remove the trained networks of a store."""
    shutil.rmtree(networks_folder(store), ignore_errors=True)


def read_network(store: Path, key: str) -> tuple[dict[str, np.ndarray], int]:
    """Return the parameters of the run with this fingerprint, and the steps that it was trained for."""
    file = networks_folder(store) / f"{key}.safetensors"
    try:
        data = disk.read(file, LARGEST_FILE)
    except FileNotFoundError:
        raise ValueError(
            f"{str(store)!r} has the results of this run, but not its network: {str(file)!r} is missing. Older "
            "versions did not keep networks. If you move a results file, move its folder of policies as well."
        ) from None
    try:
        size = int.from_bytes(data[:8], "little")
        record = json.loads(data[8 : 8 + size])["__metadata__"]
        arrays = load(data)
        if record["format"] != FORMAT or record["fingerprint"] != key or record["sha256"] != _checksum(arrays):
            raise ValueError("it does not have the checksum in its header")
        return arrays, int(record["num_steps"])
    except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise ValueError(f"{str(file)!r} is damaged: {error}.") from error


def _checksum(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(repr((name, array.dtype.str, array.shape)).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
