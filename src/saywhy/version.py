"""Which saywhy this is."""

VERSION = "0.1.0"  # the package's metadata is made from this line


def saywhy_version() -> str:
    """The version, also where the package runs without being installed."""
    return VERSION
