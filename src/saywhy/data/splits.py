"""Which images are trained on, tuned on and tested on."""

from __future__ import annotations

import hashlib

from saywhy.errors import UserError

SPLITS = ("train", "dev", "test")

_NAMES = {
    **{name: name for name in SPLITS},
    "training": "train",
    "restval": "train",  # Karpathy's: validation images that may be trained on
    "val": "dev",
    "valid": "dev",
    "validation": "dev",
    "": "",
}


def split_name(written: str) -> str:
    """Bring the names data sets use for a split to ours; "" is an image in none.

    >>> split_name("val"), split_name("Train"), split_name("restval")
    ('dev', 'train', 'train')
    """
    try:
        return _NAMES[written.strip().lower()]
    except KeyError:
        raise UserError(f"unknown split {written!r}; known: {', '.join(filter(None, _NAMES))}") from None


def stable_split(name: str, dev: float = 0.1, test: float = 0.1) -> str:
    """Choose a split from the image's name alone.

    The same name gives the same split on every machine and in every order, and adding images moves
    none that were there.

    >>> [stable_split(f"{n}.jpg") for n in (10, 11, 30)]
    ['train', 'test', 'dev']
    """
    digest = hashlib.blake2b(name.replace("\\", "/").encode(), digest_size=8).digest()
    place = int.from_bytes(digest, "big") / 2**64  # uniform in [0, 1)
    if place < test:
        return "test"
    return "dev" if place < test + dev else "train"
