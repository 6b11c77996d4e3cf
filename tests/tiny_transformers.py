"""Folders of tiny Hugging Face models with random weights.

A CLIP and a BERT over the same whole-word tokenizer; captioners over sub-words, whose weights are drawn so that words
depend on the image and captions come to an end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

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


CAPTIONS = (
    "a man riding a skateboard down a street", "two dogs playing with a frisbee in the grass", "a cat sits on a bench",
    "a skateboarder's dog is running", "a woman holds an umbrella", "a train at the station.",
    "the man has a surfboard",
)  # fmt: skip
CAPTIONER_SIZE = 32  # of the images that the captioners read


def byte_pairs(end: str = "<|endoftext|>") -> transformers.PreTrainedTokenizerFast:
    """Byte pairs like those of GPT-2, few enough that most words have several."""
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=110, special_tokens=[end], show_progress=False)
    model.train_from_iterator(CAPTIONS, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, bos_token=end, eos_token=end, pad_token=end, unk_token=end
    )


def squashing() -> transformers.ViTImageProcessor:
    """An image processor that squashes images."""
    return transformers.ViTImageProcessor(size={"height": CAPTIONER_SIZE, "width": CAPTIONER_SIZE})


def vit_gpt2(tokenizer: transformers.PreTrainedTokenizerFast, seed: int = 0) -> transformers.VisionEncoderDecoderModel:
    """A ViT-GPT2 of two layers each, with 16 patches."""
    vision = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=CAPTIONER_SIZE,
        patch_size=8,
    )  # fmt: skip
    text = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_positions=32, n_embd=24, n_layer=2, n_head=3, add_cross_attention=True,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, text)
    config.decoder_start_token_id = tokenizer.bos_token_id
    config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
    return random_weights(transformers.VisionEncoderDecoderModel(config), seed)


def word_pieces() -> transformers.PreTrainedTokenizerFast:
    """Word pieces like those of BERT: whole words, single letters, and their continuations."""
    whole = ("a", "man", "riding", "down", "street", "two", "dog", "playing", "with", "in", "the", "grass", "cat", "on")
    letters = sorted(set("".join(CAPTIONS).replace(" ", "")))
    pieces = [*whole, "skate", "##board", "surf", "##er", "##s", *letters, *(f"##{letter}" for letter in letters)]
    names = [*MARKERS, "[DEC]", *dict.fromkeys(pieces)]
    model = Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    model.normalizer = normalizers.Lowercase()
    model.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    model.decoder = decoders.WordPiece()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        bos_token="[DEC]",
    )  # fmt: skip


def cropping() -> transformers.CLIPImageProcessor:
    """An image processor that resizes the shorter side and crops the centre."""
    side = {"height": CAPTIONER_SIZE, "width": CAPTIONER_SIZE}
    return transformers.CLIPImageProcessor(size={"shortest_edge": CAPTIONER_SIZE}, crop_size=side)


VISION = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "image_size": CAPTIONER_SIZE, "patch_size": 8,
}  # fmt: skip
BERT = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 32}


def blip_parts(seed: int = 0) -> tuple[Any, Any, Any]:
    """A BLIP of two layers, its tokenizer and its image processor."""
    tokenizer = word_pieces()
    text = {
        **BERT, "vocab_size": len(tokenizer), "encoder_hidden_size": 16, "max_position_embeddings": 40,
        "bos_token_id": tokenizer.bos_token_id, "sep_token_id": tokenizer.sep_token_id,
        "eos_token_id": tokenizer.sep_token_id, "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    config = transformers.BlipConfig(text_config=text, vision_config=VISION)
    model = random_weights(transformers.BlipForConditionalGeneration(config), seed)
    model.text_decoder.generation_config.max_length = 26
    return model, tokenizer, transformers.BlipImageProcessor(size={"height": CAPTIONER_SIZE, "width": CAPTIONER_SIZE})


def git_parts(seed: int = 0) -> tuple[Any, Any, Any]:
    """A GIT of two layers, its tokenizer and its image processor."""
    tokenizer = word_pieces()
    config = transformers.GitConfig(
        vision_config=VISION, vocab_size=len(tokenizer), max_position_embeddings=40, **BERT,
        bos_token_id=tokenizer.cls_token_id, eos_token_id=tokenizer.sep_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = random_weights(transformers.GitForCausalLM(config), seed)
    model.generation_config.max_new_tokens = 25
    return model, tokenizer, cropping()


def llava_parts(seed: int = 0) -> tuple[Any, Any, Any]:
    """A LLaVA over a CLIP and a Llama with grouped attention, its tokenizer and its image processor."""
    tokenizer = byte_pairs()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    vision = transformers.CLIPVisionConfig(**VISION, projection_dim=8)
    text = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=40, max_position_embeddings=128, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    config = transformers.LlavaConfig(
        vision_config=vision, text_config=text, image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-2, vision_feature_select_strategy="default",
    )  # fmt: skip
    model = random_weights(transformers.LlavaForConditionalGeneration(config), seed)
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = 0
    model.generation_config.max_new_tokens = 20
    return model, tokenizer, cropping()


def random_weights(model, seed: int = 0):
    """Weights that are large enough for captions of different images to differ; all are exact in single precision."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.8 / parameter.shape[-1] ** 0.5 if "wte" not in name else 0.3)
            elif name.endswith("bias"):
                parameter.normal_(std=0.1)
    return model.eval()


def vit_gpt2_parts(seed: int = 0) -> tuple[Any, Any, Any]:
    """The model, its tokenizer and its image processor."""
    tokenizer = byte_pairs()
    model = vit_gpt2(tokenizer, seed)
    model.generation_config.max_new_tokens = 20
    return model, tokenizer, squashing()


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
