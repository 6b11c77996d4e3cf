"""How good is a caption? BLEU, ROUGE-L, CIDEr-D, METEOR and SPICE, as functions and as classes."""

from saywhy.metrics.base import CaptionLike, Metric, MetricUnavailable
from saywhy.metrics.bleu import Bleu, BleuScore, bleu
from saywhy.metrics.cider import Cider, CiderScore, DocumentFrequency, cider
from saywhy.metrics.meteor import Meteor, MeteorScore, meteor
from saywhy.metrics.rouge import RougeL, RougeScore, rouge_l
from saywhy.metrics.score import Scores, score
from saywhy.metrics.signature import Signature, signature
from saywhy.metrics.spice import Spice, SpiceScore, spice

__all__ = [
    "Bleu",
    "BleuScore",
    "CaptionLike",
    "Cider",
    "CiderScore",
    "DocumentFrequency",
    "Meteor",
    "MeteorScore",
    "Metric",
    "MetricUnavailable",
    "RougeL",
    "RougeScore",
    "Scores",
    "Signature",
    "Spice",
    "SpiceScore",
    "bleu",
    "cider",
    "meteor",
    "rouge_l",
    "score",
    "signature",
    "spice",
]
