"""Which saywhy this is."""

from __future__ import annotations

from importlib import metadata


def saywhy_version() -> str:
    """The installed version, or "unknown" where the package runs without being installed."""
    try:
        return metadata.version("saywhy")
    except metadata.PackageNotFoundError:
        return "unknown"
