"""Explanation methods as they are shown: names, order and colours, the same in every figure, page, table and plot."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MethodStyle:
    """How a method is shown.

    Attributes:
        name: its usual name.
        signed: whether its values may be negative, as evidence against a word.
        description: one sentence about what its maps show.
        colour: of its bars and lines in plots, from a palette for colour-blind readers (Okabe and Ito, 2008).
    """

    name: str
    signed: bool = True
    description: str = ""
    colour: str = "#57606a"


class _MethodStyles(dict[str, MethodStyle]):
    """Methods by their key; an unknown one is shown by its key."""

    def __missing__(self, key: str) -> MethodStyle:
        return MethodStyle(key)


METHOD_STYLES = _MethodStyles(
    {
        "lrp": MethodStyle(
            "LRP",
            description="Layer-wise relevance propagation: the score, passed back layer by layer to the pixels.",
            colour="#D55E00",
        ),
        "lrp-why": MethodStyle(
            "LRP, why",
            description="What in the image made the model say this word. It adds up to the image’s part of the score.",
            colour="#D55E00",
        ),
        "lrp-seen": MethodStyle(
            "LRP, seen",
            description="The relevance that reached the pixels: fine detail, also of what is salient for every word.",
            colour="#E58A4B",
        ),
        "lrp-features": MethodStyle(
            "LRP, features",
            description="The relevance of the encoder’s features: coarse; it adds up to the image’s part of the score.",
            colour="#F0BC97",
        ),
        "lrp-apart": MethodStyle(
            "LRP, apart",
            description="What tells this word from the others: its map less the mean map of the caption’s other words.",
            colour="#A34700",
        ),
        "lrp-centred": MethodStyle(
            "LRP, centred",
            description="“Why” of this word less the mean “why” of the caption’s other words.",
            colour="#6E3000",
        ),
        "gradcam": MethodStyle(
            "Grad-CAM",
            signed=False,
            description="Grad-CAM: the encoder's features, weighted by the gradient of the logit; only what raises it.",
            colour="#0072B2",
        ),
        "guided-gradcam": MethodStyle(
            "Guided Grad-CAM", description="Guided backprop multiplied by Grad-CAM.", colour="#56B4E9"
        ),
        "guided-backprop": MethodStyle(
            "Guided backprop", description="The gradient of the logit, through positive paths only.", colour="#009E73"
        ),
        "gradient-input": MethodStyle(
            "Gradient × input",
            description="Each pixel times its gradient: its effect on the logit, to first order.",
            colour="#CC79A7",
        ),
        "gradient": MethodStyle("Gradient", colour="#0072B2"),  # of earlier words; the colour of Grad-CAM
        "gradient-size": MethodStyle("Unsigned gradient", colour="#7FB8DA"),
        "attention": MethodStyle(
            "Attention",
            signed=False,
            description="Where the model attended for this word. High attention does not prove a dependence.",
            colour="#E69F00",
        ),
        "occlusion": MethodStyle(
            "Occlusion",
            description="How much less likely the word becomes when a square window hides this part of the image.",
            colour="#8A6D00",
        ),
        "last": MethodStyle("Last three words", colour="#F0E442"),
        "random": MethodStyle("Random", colour="#999999"),
        "uniform": MethodStyle("Uniform", colour="#BBBBBB"),
        "centre": MethodStyle("Centre", colour="#CCCCCC"),
    }
)
"""The methods of explanations, and the baselines of audits, in the order in which they are shown."""
