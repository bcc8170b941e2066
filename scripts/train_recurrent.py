"""Train the recurrent classifier with attention on the Sentiment Treebank, as Jain & Wallace 2019 did.

    python -m scripts.train_recurrent DATA --output models/recurrent-sentiment

Word vectors start from the bundled BERT's word pieces (mean over the pieces of a word, reduced by principal
components). Everything is chosen on the development sentences; the test sentences are read once, at the end.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from analysis.catalogue import MINILM, verify
from analysis.hf.word_tokenizer import PADDING, UNKNOWN, split_words
from attn_core.models.classifier import AttentionClassifier
from scripts.sentiment_data import sentences
from scripts.training import (
    Run,
    Schedule,
    calibrate,
    fit,
    parser_of,
    prepare,
    rounded,
    tell_binary,
    write_part,
)

Texts = list[tuple[list[int], int]]


def vocabulary(folder: Path) -> list[str]:
    """Padding, unknown, and every word that two training sentences use."""
    counts = Counter(
        word for phrase, _ in sentences(folder, "train") for word in set(split_words(phrase.text))
    )
    return [PADDING, UNKNOWN, *sorted(word for word, count in counts.items() if count > 1)]


def read(folder: Path, part: str, words: Sequence[str]) -> Texts:
    """Word indices and label of each sentence."""
    index = {word: number for number, word in enumerate(words)}
    return [
        ([index.get(word, 1) for word in split_words(phrase.text)], label)
        for phrase, label in sentences(folder, part)
    ]


def start_vectors(words: Sequence[str], width: int) -> Tensor:
    """(V, width): the bundled BERT's piece vectors, averaged over each word's pieces and reduced to ``width``."""
    from transformers import AutoTokenizer, BertModel

    folder = verify(MINILM)
    pieces = BertModel.from_pretrained(folder).embeddings.word_embeddings.weight.detach()
    ids = AutoTokenizer.from_pretrained(folder)(list(words[2:]), add_special_tokens=False)["input_ids"]
    vectors = torch.stack([pieces[torch.tensor(each)].mean(0) for each in ids])
    centred = vectors - vectors.mean(0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    reduced = centred @ directions[:width].T
    reduced = reduced / reduced.std()
    return torch.cat([torch.zeros(2, width), 0.3 * reduced])


def batches(texts: Texts, *, size: int, epoch: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Shuffled batches of sentences of like lengths."""
    random = np.random.default_rng([seed, epoch])
    order = sorted(range(len(texts)), key=lambda index: len(texts[index][0]) + 5 * random.random())
    starts = random.permutation(range(0, len(order), size))
    for start in starts:
        yield padded([texts[index] for index in order[start : start + size]])


def padded(texts: Texts) -> tuple[Tensor, Tensor]:
    """Indices (B, N), padding at the end, and labels (B,)."""
    longest = max(len(ids) for ids, _ in texts)
    tokens = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids, _ in texts])
    return tokens, torch.tensor([label for _, label in texts])


@torch.no_grad()
def predict(model: nn.Module, texts: Texts) -> tuple[Tensor, Tensor]:
    """Logits (n, 2) and labels (n,)."""
    model.eval()
    parts = [padded(texts[start : start + 64]) for start in range(0, len(texts), 64)]
    return torch.cat([model(tokens).logits for tokens, _ in parts]), torch.cat(
        [labels for _, labels in parts]
    )


def main(arguments: list[str] | None = None) -> None:
    """Train, evaluate and write the shipped files."""
    options = _parser().parse_args(arguments)
    prepare(options)
    words = vocabulary(options.data)
    model = build(words, options)
    development = read(options.data, "dev", words)
    train(model, read(options.data, "train", words), development, options)
    shipped = rounded(model)
    temperature = calibrate(*predict(model, development))
    facts = {
        "labels": ["negative", "positive"],
        "temperature": round(temperature, 4),
        "scoring": options.scoring,
        "width": options.width,
        "words": words,
    }
    write_part(options.output, facts, weights=shipped)
    tell_binary(*predict(model, read(options.data, "test", words)))


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__ or "", output="models/recurrent-sentiment", work="recurrent-sentiment")
    parser.add_argument("--scoring", choices=("additive", "scaled_dot"), default="additive")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument(
        "--width", type=int, default=128, help="of word vectors, states and additive attention"
    )
    parser.add_argument("--patience", type=int, default=4, help="epochs without a better development score")
    return parser


def build(words: Sequence[str], options: argparse.Namespace) -> AttentionClassifier:
    """The untrained model, its word vectors started from the bundled BERT's."""
    model = AttentionClassifier(
        len(words), 2, embedding=options.width, hidden=options.width, scoring=options.scoring,
        attention_width=options.width,
    )  # fmt: skip
    put_vectors(model.embedding, start_vectors(words, options.width))
    print(f"{len(words):,} words, {sum(p.numel() for p in model.parameters()):,} weights", flush=True)
    return model


def put_vectors(embedding: nn.Embedding, vectors: Tensor) -> None:
    """Put the vectors (V, width) in; the unknown word's is drawn."""
    with torch.no_grad():
        embedding.weight.copy_(vectors)
        embedding.weight[1].normal_(std=0.1)


def train(model: nn.Module, training: Texts, development: Texts, options: argparse.Namespace) -> Run:
    """Train every weight; the model has the tensors of the best epoch afterwards."""
    optimiser = torch.optim.Adam(model.parameters(), lr=options.rate, weight_decay=1e-5, amsgrad=True)
    per_epoch = -(-len(training) // options.batch)

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        tokens, labels = batch
        return nn.functional.cross_entropy(model(tokens).logits, labels)

    def score() -> tuple[int, int]:
        logits, labels = predict(model, development)
        return int((logits.argmax(-1) == labels).sum()), len(labels)

    schedule = Schedule(
        options.epochs, per_epoch, per_epoch, options.patience, rate=lambda *_: 1.0, largest_gradient=5.0
    )
    return fit(
        model,
        optimiser,
        schedule,
        batches=lambda epoch: batches(training, size=options.batch, epoch=epoch, seed=options.seed),
        loss=loss,
        score=score,
        options=options,
    )


if __name__ == "__main__":
    main()
