"""Ray started on this machine, or joined where it runs; its prints, its files and its signal handlers kept in place."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from inlay.errors import TargetError, UsageError
from inlay.model.libraries import silence
from inlay.ray import policy

LOCAL = "local"  # in place of an address: a cluster of this machine alone, which ends with the command

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anybody
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a device that Ray does not know stays visible to its actor
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # of its compiled part, which prints to the terminal
}


def ray_library() -> Any:
    """The module. Raises UsageError where it is not installed."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise UsageError(f"--ray needs Ray ({error}): pip install 'inlay[ray]'") from None
    return ray


@contextlib.contextmanager
def cluster(address: str, resources: Mapping[str, float]) -> Iterator[Any]:
    """Ray, connected: the module.

    Args:
        address: :data:`LOCAL`, ``auto``, or where the head of a cluster answers.
        resources: that the machine has, where the cluster is this machine.

    Raises:
        UsageError: Ray is not installed.
        TargetError: no cluster answers there, or none can be started.
    """
    ray = ray_library()
    if ray.is_initialized():  # by the caller of the Python interface, who also ends it
        yield ray
        return
    _hush(ray)
    own = _socket_folder() if address == LOCAL else None
    more: dict[str, Any] = {"address": address}
    if own is not None:
        more = {
            "address": LOCAL,
            "num_cpus": os.cpu_count() or 1,
            "resources": dict(resources),
            "include_dashboard": False,
            "object_store_memory": policy.STORE_BYTES,
            "_temp_dir": str(own),
        }
    try:
        with _handlers_kept(), _quiet():
            try:
                ray.init(log_to_driver=False, configure_logging=False, **more)
            except (ConnectionError, OSError, RuntimeError, TimeoutError, ValueError) as error:
                what = "Ray cannot be started" if own else "no Ray cluster answers there"
                raise TargetError(f"--ray {address}: {what}: {str(error).strip().splitlines()[0]}") from None
        yield ray
    finally:
        with _quiet():
            ray.shutdown()
        if own is not None:
            shutil.rmtree(own, ignore_errors=True)


def _socket_folder() -> Path:
    """A new folder whose path leaves room for the names of sockets."""
    usual = tempfile.gettempdir()
    short = usual if len(usual) + len("/inlay-xxxxxxxx") <= policy.MOST_SOCKET_FOLDER else "/tmp"
    return Path(tempfile.mkdtemp(prefix="inlay-", dir=short))


def _hush(ray: Any) -> None:
    """Leave the telling of lost actors to the run: Ray's own lines, which no option turns off, tear its display."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    if hasattr(ray._private.worker, "print_to_stdstream"):  # of the thread that hears of errors
        ray._private.worker.print_to_stdstream = lambda *_, **__: None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No line of Ray's on the terminal: what went wrong is raised besides."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        with silence():
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Ray sets a handler that ends the process without unwinding."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            with contextlib.suppress(ValueError):  # only the main thread may set them; there Ray did not either
                signal.signal(number, handler)
