"""Caption metrics: BLEU, ROUGE-L, CIDEr-D, METEOR and SPICE, each as a function and as a class."""

from saywhy.metrics.base import Metric, MetricUnavailable, TextOrWords
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
    "TextOrWords",
    "bleu",
    "cider",
    "meteor",
    "rouge_l",
    "score",
    "signature",
    "spice",
]
