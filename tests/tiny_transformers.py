"""Folders of tiny Hugging Face models with random weights: a CLIP and a BERT over the same whole-word tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = ("a", "photo", "depicts", "dog", "dogs", "cat", "runs", "sits", "on", "grass", "two", "the", "man", ".")
MARKERS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
SIZE = 16  # of the images that the CLIP reads


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Whole words in lower case, between [CLS] and [SEP]."""
    table = {word: index for index, word in enumerate((*MARKERS, *WORDS))}
    model = Tokenizer(models.WordLevel(table, unk_token="[UNK]"))
    model.normalizer = normalizers.Lowercase()
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    pair = [("[CLS]", table["[CLS]"]), ("[SEP]", table["[SEP]"])]
    model.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=pair)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        eos_token="[SEP]", model_max_length=20,
    )  # fmt: skip


def save_bert(folder: Path) -> transformers.BertModel:
    """A BERT of three layers."""
    config = transformers.BertConfig(
        vocab_size=len(MARKERS) + len(WORDS), hidden_size=8, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=12, max_position_embeddings=32, pad_token_id=0,
    )  # fmt: skip
    return _save(transformers.BertModel(config), folder)


def save_clip(folder: Path) -> transformers.CLIPModel:
    """A CLIP of two layers for images of 16 × 16 pixels."""
    common = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
    text = {
        **common, "vocab_size": len(MARKERS) + len(WORDS), "max_position_embeddings": 12, "pad_token_id": 0,
        "bos_token_id": 2, "eos_token_id": 3,
    }  # fmt: skip
    vision = {**common, "image_size": SIZE, "patch_size": 8}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=6)
    model = _save(transformers.CLIPModel(config), folder)
    processor = transformers.CLIPImageProcessor(size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE})
    processor.save_pretrained(folder)
    return model


def _save(model, folder: Path):
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return model.eval()
