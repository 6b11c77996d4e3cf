"""One optimiser step: loss, gradients, clipping, update of the weights.

`Update` computes it from the batches of one or several processes. `CapturedUpdate` does the same on one GPU as a CUDA
graph: the kernels of a step are recorded once and then launched together, because launching some thousand small
kernels one by one takes the host longer than the GPU needs to run them.

Both return the sums of the loss as a tensor on the device, so that no step waits for the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from saywhy.data.tokenizer import PAD
from saywhy.data.training_batches import Batch, ResidentBatches

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Update:
    """A step over a group of batches, whose gradients are added.

    Args:
        fabric: gives the device, the precision and the other processes.
        loss: the `CaptionLoss` or `SelfCriticalLoss`, set up by Fabric.
        optimiser: of its parameters.
        clip: largest norm of the gradient, 0 for no clipping.
        grid: rows and columns of the features, where the inputs are cached features.
    """

    def __init__(
        self, fabric: Fabric, loss: Any, optimiser: Optimizer, clip: float, grid: tuple[int, int] | None = None
    ) -> None:
        self.fabric, self.loss, self.optimiser, self.clip, self.grid = fabric, loss, optimiser, clip, grid

    def __call__(self, group: Sequence[Batch]) -> Tensor:
        """Update the weights; returns the sums of the loss (the fields of `LossSums`) over all processes."""
        fabric, loss = self.fabric, self.loss
        group = [batch.to(fabric.device) for batch in group]
        own_captions = torch.stack([(batch.tokens != PAD).any(dim=1).sum() for batch in group]).sum()
        captions = self._sum_over_processes(own_captions)
        own_sums = []
        for number, batch in enumerate(group):
            with fabric.no_backward_sync(loss, enabled=number < len(group) - 1):
                sums = loss(
                    batch.inputs, batch.may_flip, batch.tokens, batch.image_index, self.grid, batch.boxes, batch.active
                )
                # gradients are averaged over processes, and the loss is a mean over the captions of all processes
                fabric.backward(sums.loss * fabric.world_size / captions.clamp(min=1))
            own_sums.append(sums.as_vector())
        if self.clip:
            clip_grad_norm_(loss.parameters(), self.clip)
        self.optimiser.step()
        self.optimiser.zero_grad()
        return self._sum_over_processes(torch.stack(own_sums).sum(dim=0))

    def _sum_over_processes(self, tensor: Tensor) -> Tensor:
        if self.fabric.world_size == 1:
            return tensor
        total = self.fabric.all_reduce(tensor, reduce_op="sum")
        assert isinstance(total, Tensor)
        return total


class CapturedUpdate:
    """A step over one batch of `ResidentBatches`, replayed as a CUDA graph; on other devices it is simply computed.

    The first steps after a change of the batches' shape run without the graph, as PyTorch requires; they are ordinary
    steps of the run.
    """

    WARM_UP = 3

    def __init__(self, update: Update, batches: ResidentBatches) -> None:
        self.update, self.batches = update, batches
        self.device = batches.inputs.device
        self.shape: tuple[int, ...] = ()
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, plan: Tensor) -> Tensor:
        """Update the weights on the batch of a plan that is on the device; returns the sums of the loss."""
        if self.device.type != "cuda":
            return self._compute(plan)
        if self.shape != (self.batches.images, *self.batches.active):
            self.shape = (self.batches.images, *self.batches.active)
            self.graph, self.steps = None, 0
            self.stream = torch.cuda.Stream()
            self.plan = plan.clone()
        self.plan.copy_(plan)
        if self.graph is None and self.steps == self.WARM_UP:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.sums = self._compute(self.plan)
        if self.graph is not None:
            self.graph.replay()
            return self.sums.clone()
        self.steps += 1
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            sums = self._compute(self.plan)
        torch.cuda.current_stream().wait_stream(self.stream)
        return sums

    def _compute(self, plan: Tensor) -> Tensor:
        return self.update([self.batches.gather(plan)])
