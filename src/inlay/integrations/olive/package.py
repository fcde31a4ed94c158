"""What tells Olive where the passes are: its own package configuration, and ours in it.

``python -m inlay.integrations.olive.package FILE`` writes it.

``--package-config`` takes the place of Olive's own file (olive-ai 0.13), so that one without its passes would forget
them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from inlay.errors import DataError, InlayError
from inlay.files import replacing
from inlay.integrations.packages import required

_HOME = "inlay.integrations.olive.passes"
_BOTH = {
    "supported_providers": ["*"],
    "supported_accelerators": ["*"],
    "supported_precisions": ["int4", "int8", "int16", "uint8", "uint16"],
    "supported_algorithms": [],
    "supported_quantization_encodings": ["qdq"],
    "dataset": "dataset_optional",
}


def package_config() -> dict[str, Any]:
    """The configuration of the installed Olive, with the passes ``InlayTune`` and ``InlayQuantize``.

    Raises:
        UsageError: Olive is not installed.
        DataError: its own configuration cannot be read.
    """
    found = required("olive.package_config", "olive", "a package configuration of Olive").OlivePackageConfig
    path = Path(found.get_default_config_path())
    try:
        merged: dict[str, Any] = json.loads(path.read_text(encoding="utf8"))
        passes = dict(merged["passes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    ours = {name: {"module_path": f"{_HOME}.{name}", **_BOTH} for name in ("InlayTune", "InlayQuantize")}
    return {**merged, "passes": {**passes, **ours}}


def write_package_config(path: str | Path) -> Path:
    """Write it to ``path``. Raises UsageError and DataError as :func:`package_config` does."""
    text = json.dumps(package_config(), indent=4) + "\n"
    with replacing(Path(path)) as fresh:
        fresh.write_text(text, encoding="utf8")
    return Path(path)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m inlay.integrations.olive.package FILE")
    try:
        print(f"Wrote {write_package_config(sys.argv[1])}, for olive run --package-config")
    except (InlayError, OSError) as error:
        sys.exit(f"error: {error}")
