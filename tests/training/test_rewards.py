"""The reward on token ids equals CIDEr-D of the same words."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from reference import metrics as reference
from saywhy.data.coco_objects import coco_categories, coco_mentions, coco_phrases
from saywhy.data.tokenizer import END, PAD, START, UNK
from saywhy.errors import UserError
from saywhy.metrics import DocumentFrequency, cider
from saywhy.training.rewards import (
    LARGEST_VOCABULARY,
    CiderReward,
    InventedObjects,
    PenalisedReward,
    document_frequencies,
    ngram_counts,
    rewards,
)

WORDS = 40


def caption(random: np.random.Generator, most: int = 12) -> list[int]:
    """Words of a small vocabulary, so that n-grams repeat, and `<end>`."""
    return [*(random.zipf(1.4, random.integers(0, most)) % (WORDS - UNK) + UNK).tolist(), END]


def training_captions(random: np.random.Generator, images: int) -> list[list[list[int]]]:
    return [[[START, *caption(random)] for _ in range(random.integers(1, 6))] for _ in range(images)]


def padded(groups: list[list[list[int]]], width: int) -> torch.Tensor:
    """(P, most captions, width)."""
    table = torch.full((len(groups), max(map(len, groups)), width), PAD)
    for image, group in enumerate(groups):
        for row, tokens in enumerate(group):
            table[image, row, : len(tokens)] = torch.tensor(tokens)
    return table


def copies(groups: list[list[list[int]]]) -> torch.Tensor:
    return (padded(groups, 30) != PAD).any(dim=-1).long()


def as_words(tokens: list[int]) -> list[str]:
    return [str(token) for token in tokens]


@pytest.fixture
def samples() -> tuple[list, list, list]:
    """Training captions, three candidates for each of eight images, and the images' references."""
    random = np.random.default_rng(0)
    train = training_captions(random, 30)
    references = [[tokens[1:] for tokens in image] for image in train[:8]]
    candidates = [[references[image][0], caption(random, 20), caption(random, 20)] for image in range(8)]
    return train, candidates, references


def test_the_reward_equals_cider_with_document_frequencies_of_the_training_captions(samples):
    train, candidates, references = samples
    reward = CiderReward(train, WORDS)(padded(candidates, 21), padded(references, 15), copies(references))
    frequency = DocumentFrequency.of([[as_words(tokens[1:]) for tokens in image] for image in train])
    expected = cider(
        [as_words(tokens) for group in candidates for tokens in group],
        [[as_words(tokens) for tokens in references[image]] for image in range(8) for _ in range(3)],
        frequency,
    ).per_caption
    assert expected.max() > 5
    np.testing.assert_allclose(reward.flatten().numpy(), expected, atol=1e-5)


def test_the_reward_equals_the_reference_implementation(samples):
    train, candidates, references = samples
    reward = CiderReward(train, WORDS)(padded(candidates, 21), padded(references, 15), copies(references))
    documents = [[tokens[1:] for tokens in image] for image in train]
    expected = [reference.cider(group, [references[n]] * 3, documents) for n, group in enumerate(candidates)]
    np.testing.assert_allclose(reward.numpy(), expected, atol=1e-5)


def test_the_reward_equals_pycocoevalcap(samples):
    scorers = pytest.importorskip("pycocoevalcap.cider.cider_scorer")
    _, candidates, references = samples
    scorer = scorers.CiderScorer(n=4, sigma=6.0)
    lines = [[" ".join(as_words(tokens)) for tokens in group] for group in references]
    for image, group in enumerate(candidates):
        for tokens in group:
            scorer += (" ".join(as_words(tokens)), lines[image])
    _, expected = scorer.compute_score()
    # it counts documents in the references of its candidates: each image three times
    train = [[[START, *tokens] for tokens in group] for group in references for _ in range(3)]
    reward = CiderReward(train, WORDS)(padded(candidates, 21), padded(references, 15), copies(references))
    np.testing.assert_allclose(reward.flatten().numpy(), expected, atol=1e-5)


def test_padding_of_captions_references_and_images_changes_nothing(samples):
    train, candidates, references = samples
    metric = CiderReward(train, WORDS)
    reward = metric(padded(candidates, 21), padded(references, 15), copies(references))
    more = torch.cat([padded(references, 40), torch.full((8, 3, 40), PAD)], dim=1)
    counts = torch.cat([copies(references), torch.zeros(8, 3, dtype=torch.long)], dim=1)
    torch.testing.assert_close(metric(padded(candidates, 50), more, counts), reward)
    nothing = metric(padded(candidates, 21), torch.full((8, 2, 15), PAD), torch.zeros(8, 2))
    assert not nothing.any()


def test_copies_weight_the_mean_over_references(samples):
    train, candidates, references = samples
    doubled = [[group[0], *group] for group in references]
    metric = CiderReward(train, WORDS)
    weights = copies(references)
    weights[:, 0] = 2
    torch.testing.assert_close(
        metric(padded(candidates, 21), padded(references, 15), weights),
        metric(padded(candidates, 21), padded(doubled, 15), copies(doubled)),
    )


def test_a_caption_without_its_end_scores_less(samples):
    train, _, references = samples
    complete = [[group[0]] for group in references]
    fragments = [[group[0][:-1]] for group in references]
    metric = CiderReward(train, WORDS)
    arguments = padded(references, 15), copies(references)
    best, less = (metric(padded(group, 21), *arguments) for group in (complete, fragments))
    long_enough = torch.tensor([len(group[0]) > 3 for group in references])
    assert long_enough.any()
    assert (less < best)[long_enough].all()


def test_document_frequencies_count_images_not_captions():
    captions = [[[START, 5, 6, END], [START, 5, 6, 5, 6, END]], [[START, 6, END]]]
    keys, counts = document_frequencies(captions, WORDS)
    frequency = dict(zip(keys.tolist(), counts.tolist(), strict=True))
    assert frequency[5] == 1
    assert frequency[6] == frequency[END] == 2
    assert frequency[5 * WORDS + 6] == 1
    assert frequency[6 * WORDS + END] == 2
    assert frequency[((5 * WORDS + 6) * WORDS + 5) * WORDS + 6] == 1
    assert keys.tolist() == sorted(keys.tolist())


@pytest.mark.parametrize("width", [1, 2, 3, 6])
def test_ngrams_are_counted_as_in_a_loop(width):
    random = np.random.default_rng(width)
    tokens, others = (torch.from_numpy(random.integers(4, 7, (5, width))) for _ in range(2))
    counts = ngram_counts(tokens.T, others.T)
    for row in range(5):
        for n in range(1, 5):
            grams = reference.ngrams(others[row].tolist(), n)
            for end in range(n - 1, width):
                gram = tuple(tokens[row, end - n + 1 : end + 1].tolist())
                assert counts[n - 1, end, row] == sum(tuple(other) == gram for other in grams)


def test_an_unknown_metric_and_a_vocabulary_too_large_are_refused_in_one_line():
    with pytest.raises(UserError, match="unknown reward metric 'spice'"):
        _ = rewards["spice"]
    assert LARGEST_VOCABULARY**4 < 2**63 <= (LARGEST_VOCABULARY + 1) ** 4
    with pytest.raises(UserError, match=r"raise vocabulary\.min_count"):
        CiderReward([[[START, 5, END]]], LARGEST_VOCABULARY + 1)


MORE_WORDS = ["a", "and", "her", "on", "the", "with", "sits", "near", "zq"]


def object_vocabulary() -> list[str]:
    """Markers, all words of COCO's table of objects, and some others."""
    words = (word for phrase in coco_phrases() for word in phrase.words)
    return ["<pad>", "<start>", "<end>", "<unk>", *dict.fromkeys((*words, *MORE_WORDS))]


def object_captions(random: np.random.Generator, count: int) -> list[list[str]]:
    """Phrases of the table, their words, and other words, in any order."""
    phrases, words = [phrase.words for phrase in coco_phrases()], object_vocabulary()[4:]
    captions = []
    for _ in range(count):
        parts = [phrases[random.integers(len(phrases))] for _ in range(3)]
        parts += [(words[random.integers(len(words))],) for _ in range(3)] + [("mother",), ("bear",)][
            : random.integers(3)
        ]
        random.shuffle(parts)
        captions.append([word for part in parts for word in part][:20])
    return captions


def encode(captions: list[list[str]], words: list[str], width: int = 21) -> torch.Tensor:
    return padded([[[*map(words.index, caption), END] for caption in captions]], width)[0]


def test_objects_are_found_in_token_ids_as_in_words():
    words, captions = object_vocabulary(), object_captions(np.random.default_rng(0), 400)
    captions += [
        line.split() for line in ("a hot dog on the dog", "a mother elephant and her baby", "a mother and a dog")
    ]
    counts = InventedObjects(words).mentions(encode(captions, words))
    names = coco_categories()
    found = [{names[n]: int(count) for n, count in enumerate(row) if count} for row in counts]
    assert found == [dict(Counter(mention.lemma for mention in coco_mentions(caption))) for caption in captions]
    assert found[-3:] == [{"hot dog": 1, "dog": 1}, {"elephant": 1}, {"person": 1, "dog": 1}]


def test_every_mention_of_an_object_that_no_reference_names_is_penalised():
    words = object_vocabulary()
    references = encode([["a", "dog", "on", "the", "couch"], ["a", "puppy"]], words).unsqueeze(0)
    candidates = encode([line.split() for line in ("a dog", "a cat and a cat", "a sofa and a cat", "")], words)
    reward = PenalisedReward(lambda *_: torch.tensor([[1.0, 2.0, 3.0, 4.0]]), words, 0.25)
    values = reward(candidates.unsqueeze(0), references, torch.ones(1, 2))
    assert values.tolist() == [[1.0, 1.5, 2.75, 4.0]]


def test_a_vocabulary_without_objects_has_no_mentions():
    objects = InventedObjects(["<pad>", "<start>", "<end>", "<unk>", "blue"])
    assert objects(torch.tensor([[[4, 4, 2]]]), torch.tensor([[[4, 2]]])).tolist() == [[0]]
