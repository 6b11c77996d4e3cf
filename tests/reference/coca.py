"""CoCa in plain Python: lists of numbers, one word, head and feature at a time, without a cache."""

from __future__ import annotations

import math

from reference.soft_attention import dot, linear

END = 2


def add(*vectors):
    return [sum(numbers) for numbers in zip(*vectors, strict=True)]


def softmax(energies):
    exponentials = [math.exp(e - max(energies)) for e in energies]
    return [e / sum(exponentials) for e in exponentials]


def mean_of(rows):
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def position(t, width):
    angles = [t / 10000 ** (i / (width // 2)) for i in range(width // 2)]
    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]


class CoCa:
    """One image at a time. `weights` is the captioner's state dict as nested lists."""

    def __init__(self, weights, conditioning, heads, unimodal, multimodal):
        self.weights = weights
        self.conditioning = conditioning
        self.heads = heads
        self.unimodal = unimodal
        self.multimodal = multimodal

    def linear(self, name, x):
        return linear(self.weights[f"{name}.weight"], x, self.weights.get(f"{name}.bias"))

    def norm(self, name, x):
        mean = sum(x) / len(x)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in x) / len(x) + 1e-5)
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return [w * (value - mean) / deviation + b for value, w, b in zip(x, weight, bias, strict=True)]

    def attention(self, name, x, memory):
        """The output for one query vector, and the attention of each head."""
        q = self.linear(f"{name}.q", x)
        keys, values = ([self.linear(f"{name}.{part}", vector) for vector in memory] for part in "kv")
        d = len(q) // self.heads
        context, weights = [], []
        for head in range(self.heads):
            part = slice(head * d, (head + 1) * d)
            weights.append(softmax([dot(q[part], k[part]) / math.sqrt(d) for k in keys]))
            context += [
                sum(w * v[i] for w, v in zip(weights[-1], values, strict=True)) for i in range(d * head, d * head + d)
            ]
        return self.linear(f"{name}.out", context), weights

    def pool(self, features):
        """Pooled vectors, and the attention of each to the features."""
        normed = [self.norm("pooler.before", a) for a in features]
        outputs = [self.attention("pooler.attention", query, normed) for query in self.weights["pooler.queries"]]
        return [self.norm("pooler.after", vector) for vector, _ in outputs], [
            mean_of(weights) for _, weights in outputs
        ]

    def layer(self, name, xs, pooled=None):
        """The output of one layer for all words, and their attention to pooled vectors."""
        normed = [self.norm(f"{name}.attention_norm", x) for x in xs]
        outputs, attention = [], []
        for t, x in enumerate(xs):
            x = add(x, self.attention(f"{name}.attention", normed[t], normed[: t + 1])[0])
            if pooled is not None:
                context, weights = self.condition(f"{name}.conditioning", x, pooled)
                x = add(x, context)
                attention.append(weights)
            hidden = self.linear(f"{name}.mlp.0", self.norm(f"{name}.mlp_norm", x))
            active = [h * (1 + math.erf(h / math.sqrt(2))) / 2 for h in hidden]
            outputs.append(add(x, self.linear(f"{name}.mlp.2", active)))
        return outputs, attention

    def condition(self, name, x, pooled):
        if self.conditioning == "bottleneck":
            (only,) = pooled
            return self.linear(f"{name}.value", only), [1.0]
        context, weights = self.attention(f"{name}.attention", self.norm(f"{name}.norm", x), pooled)
        return context, mean_of(weights)

    def unimodal_layers(self, words):
        """The unimodal layers."""
        embedded = [self.weights["E.weight"][word] for word in words]
        xs = [add(x, position(t, len(x))) for t, x in enumerate(embedded)]
        for n in range(self.unimodal):
            xs, _ = self.layer(f"unimodal.{n}", xs)
        return xs

    def __call__(self, features, words):
        """Logits and α after each word."""
        pooled, pooling = self.pool(features)
        if self.conditioning == "attention":
            pooled, pooling = pooled[1:], pooling[1:]
        xs = self.unimodal_layers(words)
        for n in range(self.multimodal):
            xs, attention = self.layer(f"multimodal.{n}", xs, pooled)
        columns = list(zip(*pooling, strict=True))
        alphas = [[dot(weights, column) for column in columns] for weights in attention]
        return [(self.linear("out", self.norm("norm", x)), alpha) for x, alpha in zip(xs, alphas, strict=True)]

    def match(self, features, words):
        """The cosine similarity of an image and a caption."""
        pooled, _ = self.pool(features)
        x = self.linear("contrastive.of_image", pooled[0])
        y = self.linear("contrastive.of_caption", self.unimodal_layers(words)[words.index(END)])
        return dot(x, y) / math.sqrt(dot(x, x) * dot(y, y))


def contrastive_loss(similarity, scale, included, image_index):
    """−½ log p(own caption | image) − ½ log p(own image | caption) of each pair, against those of other images."""
    losses = []
    for i, image in enumerate(image_index):
        if not included[i]:
            losses.append(0.0)
            continue
        pairs = [j for j in range(len(image_index)) if j == i or (included[j] and image_index[j] != image)]
        captions = softmax([scale * similarity[i][j] for j in pairs])
        images = softmax([scale * similarity[j][i] for j in pairs])
        own = pairs.index(i)
        losses.append(-(math.log(captions[own]) + math.log(images[own])) / 2)
    return losses
