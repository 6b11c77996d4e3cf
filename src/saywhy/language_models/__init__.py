"""Language models over captions, and how they score the words of a captioner."""

from saywhy.language_models.base import LanguageModel, build, language_models
from saywhy.language_models.language_model_folder import SavedLanguageModel, load
from saywhy.language_models.load_scorer import load_scorer
from saywhy.language_models.word_scorer import VocabularyScorer, WordScorer

__all__ = [
    "LanguageModel",
    "SavedLanguageModel",
    "VocabularyScorer",
    "WordScorer",
    "build",
    "language_models",
    "load",
    "load_scorer",
]
