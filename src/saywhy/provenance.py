"""Version, machine and commit, for results files."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

VERSION = "0.2.0"  # the build reads the package's version from this line


def saywhy_version() -> str:
    """The version, also where the package is not installed."""
    return VERSION


def machine(device: torch.device) -> dict[str, Any]:
    """The device, versions and commit, for a results file."""
    import torch

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    return {
        "device": name,
        "threads": torch.get_num_threads(),
        "versions": {
            "saywhy": saywhy_version(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "commit": commit(),
    }


def commit() -> str | None:
    """The commit of the package's source tree, with a plus sign if files have changed since.

    Outside a repository, $SAYWHY_COMMIT, or None.
    """
    folder = Path(__file__).parent
    try:
        head = _git(folder, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(folder, "status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("SAYWHY_COMMIT")


def _git(folder: Path, *arguments: str) -> str:
    run = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return run.stdout.strip()
