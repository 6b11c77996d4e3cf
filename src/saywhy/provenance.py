"""What a number was measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

VERSION = "0.2.0"  # the package's metadata is made from this line


def saywhy_version() -> str:
    """The version, also where the package runs without being installed."""
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
    """The commit the package's source tree is at, with a plus sign where it was changed.

    Where the tree came without its repository, what $SAYWHY_COMMIT says, or None.
    """
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(here, "status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("SAYWHY_COMMIT")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()
