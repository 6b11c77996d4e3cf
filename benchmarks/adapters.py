"""Cost and conservation of explaining captioners of transformers: ten words, down to the pixels.

    python benchmarks/adapters.py [--json FILE]

For each adapter a model of its architecture with random weights (4 + 4 layers, width 192, 196 patches) explains ten
tokens. The plain passes that its time is compared with are one forward pass and, for each token, two backward passes:
from its logit to the embeddings and features, and from the features to the pixels. Both are timed in turn, and the
median of their ratios counts. Conservation is measured in double precision: the largest error of the parts of a budget,
and of pixels against features, relative to max(1, |logit|).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from saywhy.adapters.base import NativeTokens, adapters
from saywhy.adapters.vision_tower import VisionTower
from saywhy.captioners.base import Captioner
from saywhy.data.tokenizer import START
from saywhy.encoders.registry import EncoderSettings, InputConvention
from saywhy.explain.composites import DEFAULT, composite
from saywhy.explain.passes import run_gradients, run_lrp
from saywhy.explain.targets import Targets
from saywhy.provenance import machine

WORDS, VOCABULARY, REPEATS = 10, 1000, 5
VISION = {
    "hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 768, "image_size": 224,
    "patch_size": 16,
}  # fmt: skip
TEXT = {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 768}


def vit_gpt2() -> Any:
    text = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=192, n_layer=4, n_head=4, add_cross_attention=True
    )
    vision = transformers.ViTConfig(**VISION)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, text)
    return transformers.VisionEncoderDecoderModel(config)


def blip() -> Any:
    text = {**TEXT, "vocab_size": VOCABULARY, "encoder_hidden_size": 192}
    return transformers.BlipForConditionalGeneration(transformers.BlipConfig(text_config=text, vision_config=VISION))


def git() -> Any:
    config = transformers.GitConfig(vision_config=VISION, vocab_size=VOCABULARY, **TEXT)
    return transformers.GitForCausalLM(config)


def llava() -> Any:
    text = transformers.LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, **TEXT)
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**VISION), text_config=text, image_token_id=5
    )
    return transformers.LlavaForConditionalGeneration(config)


MODELS = {"vision-encoder-decoder": vit_gpt2, "blip": blip, "git": git, "llava": llava}


def captioner_of(name: str) -> Captioner:
    torch.manual_seed(0)
    cls, model = adapters[name], MODELS[name]().eval()
    model.set_attn_implementation("eager")
    body = cls.vision(model)
    convention = InputConvention((127.5,) * 3, (127.5,) * 3)
    with torch.no_grad():
        width = body(torch.zeros(1, 3, 224, 224)).shape[2]
    encoder = VisionTower(EncoderSettings(name, 224, convention), body, width, (14, 14), cls.unplaced(model))
    prompt = [7, 5, 8, 9, 10] if name == "llava" else [7]
    tokens = [token for token in range(VOCABULARY) if token != 2]
    return cls(model, encoder, NativeTokens(tokens, prompt, [2], cls.image_token(model))).eval()


def inputs() -> tuple[torch.Tensor, Targets]:
    random = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (1, 3, 224, 224), dtype=torch.uint8, generator=random)
    words = torch.randint(10, VOCABULARY, (1, WORDS), generator=random)
    tokens = torch.cat([torch.full((1, 1), START), words], dim=1)
    return pixels, Targets(tokens, torch.arange(WORDS)[None], words, torch.full_like(words, -1))


def gradients(captioner: Captioner, pixels: torch.Tensor, targets: Targets) -> None:
    """One forward pass, and the two backward passes of every word."""
    forward, _ = run_gradients(captioner, pixels, None, targets, 1)
    g, _, _ = forward.decoder_gradients()
    forward.gradients(forward.features.vectors, (forward.x,), g)


def seconds(function: Any, *arguments: Any) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def cost(captioner: Captioner) -> dict[str, float]:
    rules, (pixels, targets) = composite(DEFAULT), inputs()
    ratios, times = [], []
    for repeat in range(REPEATS + 1):
        plain = seconds(gradients, captioner, pixels, targets)
        relevance = seconds(run_lrp, captioner, pixels, None, targets, rules, 1)
        if repeat:  # the first warms up
            ratios.append(relevance / plain)
            times.append(relevance)
    return {"ratio_to_gradients": statistics.median(ratios), "seconds": statistics.median(times)}


def conservation(captioner: Captioner) -> dict[str, float]:
    captioner, (pixels, targets) = captioner.double(), inputs()
    forward, relevance = run_lrp(captioner, pixels, None, targets, composite(DEFAULT), 1)
    scores, image = forward.scores.detach().T, relevance.features.sum(dim=-1)
    size = scores.abs().clamp(min=1)
    parts = image + relevance.tokens.sum(dim=-1) + relevance.initial_state + relevance.absorbed
    assert relevance.pixels is not None
    reached = relevance.pixels.sum(dim=(2, 3)) + relevance.absorbed_by_encoder
    return {
        "decoder_error": float(((parts - scores).abs() / size).max()),
        "encoder_error": float(((reached - image).abs() / size).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    results = {}
    for name in MODELS:
        captioner = captioner_of(name)
        results[name] = {**cost(captioner), **conservation(captioner)}
        print(name, {key: float(f"{value:.3g}") for key, value in results[name].items()}, flush=True)
    if arguments.json:
        about = {"words": WORDS, "transformers": transformers.__version__, **machine(torch.device("cpu"))}
        arguments.json.write_text(json.dumps({"about": about, "models": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
