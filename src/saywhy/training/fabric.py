"""The machines a run is spread over, through Lightning Fabric: one process, or as many as torchrun started."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

import torch

from saywhy.errors import UserError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PATIENCE = timedelta(days=1)  # the first process encodes features and scores dev while the others wait
PRECISIONS = {"bf16": "bf16-mixed", "float32": "32-true"}


def engine(precision: str = "auto", device: str = "auto") -> Fabric:
    """A launched Fabric for this process; `torchrun` decides how many there are."""
    try:
        from lightning_fabric import Fabric
        from lightning_fabric.strategies import DDPStrategy
    except ImportError:
        raise UserError('training needs Lightning Fabric: pip install "saywhy[train]"') from None
    here = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    everywhere = int(os.environ.get("WORLD_SIZE", 1))
    fabric = Fabric(
        accelerator=device,
        devices=here,
        num_nodes=everywhere // here,
        strategy=DDPStrategy(timeout=PATIENCE) if everywhere > 1 else "auto",
        precision=_precision(precision, device),  # type: ignore[arg-type]
    )
    fabric.launch()
    return fabric


def _precision(wanted: str, device: str) -> str:
    if wanted == "auto":
        has_bf16 = device != "cpu" and torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        wanted = "bf16" if has_bf16 else "float32"
    if wanted not in PRECISIONS:
        raise UserError(f'unknown precision {wanted!r}: use "auto", "bf16" or "float32"')
    return PRECISIONS[wanted]


def gathered(here: list[str], processes: int) -> list[list[str]]:
    """What every process has, in their order."""
    everywhere = [here] * processes
    if processes > 1:
        torch.distributed.all_gather_object(everywhere, here)
    return everywhere
