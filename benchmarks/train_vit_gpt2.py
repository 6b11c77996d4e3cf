"""Train a small ViT-GPT2 of transformers on a data set in Karpathy's layout, as an independent model for adapters.

    python benchmarks/train_vit_gpt2.py COCO OUT [--minutes 20]

COCO has dataset_coco.json and the images. The test split is left out. transformers' own classes and loss are used, not
saywhy; the result is a folder of `save_pretrained`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SIZE, PATCH, WORDS = 96, 12, 2000
END = "<|endoftext|>"
WORD = re.compile(r"[a-z0-9'-]+")


def tokenizer_of(captions: list[str]) -> transformers.PreTrainedTokenizerFast:
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    model.train_from_iterator(captions, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model, bos_token=END, eos_token=END, pad_token=END)


def model_of(words: int) -> transformers.VisionEncoderDecoderModel:
    vision = transformers.ViTConfig(
        hidden_size=192, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512, image_size=SIZE,
        patch_size=PATCH,
    )  # fmt: skip
    text = transformers.GPT2Config(
        vocab_size=words, n_positions=40, n_embd=192, n_layer=3, n_head=4, add_cross_attention=True, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, text)
    config.decoder_start_token_id = config.eos_token_id = config.pad_token_id = 0
    return transformers.VisionEncoderDecoderModel(config)


def pixels_of(path: Path) -> np.ndarray:
    image = Image.open(path).convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR, reducing_gap=2.0)
    return np.asarray(image).transpose(2, 0, 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=20)
    arguments = parser.parse_args()
    entries = json.loads((arguments.data / "dataset_coco.json").read_text())["images"]
    train = [entry for entry in entries if entry["split"] != "test"]
    paths = {path.name: path for path in arguments.data.rglob("*.jpg")}
    captions = [[" ".join(WORD.findall(sentence["raw"].lower())) for sentence in entry["sentences"]] for entry in train]
    tokenizer = tokenizer_of([caption for row in captions for caption in row])
    images = torch.from_numpy(np.stack([pixels_of(paths[entry["filename"]]) for entry in train]))
    torch.manual_seed(0)
    random.seed(0)
    model = model_of(len(tokenizer)).train()
    print(f"{len(train)} images, {sum(p.numel() for p in model.parameters()):,} weights", flush=True)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    start, step, losses = time.monotonic(), 0, []
    while (passed := (time.monotonic() - start) / 60) < arguments.minutes:
        share = passed / arguments.minutes
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * min(1, (step + 1) / 200) * max(0.02, 1 - share)
        rows = random.sample(range(len(train)), 64)
        texts = [random.choice(captions[row]) for row in rows]
        ids = [[*tokenizer(text)["input_ids"][:30], 0] for text in texts]
        longest = max(map(len, ids))
        labels = torch.tensor([row + [-100] * (longest - len(row)) for row in ids])
        inputs = torch.tensor([[0, *row[:-1], *[0] * (longest - len(row))] for row in ids])
        x = images[rows].float() / 127.5 - 1
        flip = torch.rand(len(x)) < 0.5
        x[flip] = x[flip].flip(-1)
        logits = model(pixel_values=x, decoder_input_ids=inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
        step += 1
        if step % 100 == 0:
            print(f"{passed:.1f} min, step {step}, loss {sum(losses[-100:]) / 100:.3f}", flush=True)
    model.eval().generation_config.max_new_tokens = 24
    for part in (model, tokenizer, transformers.ViTImageProcessor(size={"height": SIZE, "width": SIZE})):
        part.save_pretrained(arguments.out)


if __name__ == "__main__":
    main()
