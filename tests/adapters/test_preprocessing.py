"""The pixels of an image are exactly those of the image processor of transformers."""

from __future__ import annotations

import numpy as np
import pytest
import transformers
from PIL import Image

from saywhy.adapters.vision_tower import preprocessing_of

PillowProcessor = getattr(transformers, "CLIPImageProcessorPil", transformers.CLIPImageProcessor)


@pytest.mark.parametrize("resample", [Image.Resampling.NEAREST, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC])
@pytest.mark.parametrize("size", [(98, 49), (49, 147), (60, 60), (50, 37)])
def test_a_crop_has_the_pixels_of_the_processor(size, resample):
    crop = {"height": 32, "width": 32}
    processor = PillowProcessor(size={"shortest_edge": 32}, crop_size=crop, resample=resample)
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    plain = {"do_normalize": False, "do_rescale": False}
    expected = processor(images=image, return_tensors="np", **plain)["pixel_values"][0]
    np.testing.assert_array_equal(preprocessing_of(processor, 32)(image), expected)
