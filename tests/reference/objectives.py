"""What training minimises, word by word."""

from __future__ import annotations

import math

from reference.soft_attention import doubly_stochastic

PAD = 0


def log_softmax(logits):
    highest = max(logits)
    total = highest + math.log(sum(math.exp(x - highest) for x in logits))
    return [x - total for x in logits]


def log_likelihood(logits, alpha, wanted, smoothing=0.0, penalty=0.0, taught=None, distil=0.0):
    """The four sums over captions: loss, −log p, words, captions. `taught` are the teachers' mean probabilities."""
    loss = log_loss = 0.0
    words = captions = 0
    for n, caption in enumerate(wanted):
        spoken = [word != PAD for word in caption]
        for t, word in enumerate(caption):
            if word == PAD:
                continue
            log_p = log_softmax(logits[n][t])
            own = (1 - smoothing) * -log_p[word] + smoothing * -sum(log_p) / len(log_p)
            theirs = -sum(p * q for p, q in zip(taught[n][t], log_p, strict=True)) if taught else 0.0
            loss += (1 - distil) * own + distil * theirs
            log_loss -= log_p[word]
            words += 1
        if any(spoken):
            captions += 1
            loss += penalty * doubly_stochastic([alpha[n]], [spoken])[0]
    return loss, log_loss, words, captions
