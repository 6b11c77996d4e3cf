"""Judges: dual encoders that say how well a caption fits its image. They measure captions and never write them."""

from saywhy.judges.dual_encoder import DualEncoder, DualEncoderSettings
from saywhy.judges.judge_folder import SavedJudge, load

__all__ = ["DualEncoder", "DualEncoderSettings", "SavedJudge", "load"]
