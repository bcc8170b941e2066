"""Five ways to wire an alignment: what the scores are made from, and which sequence they look over.

These are the five data flows that the article "Attention (machine learning)" of the English Wikipedia draws side by
side (section "Variants", read in the version of April 2026). It takes them from Luong et al. 2015, from university
lectures on queries, keys and values, and, for the fifth, from an earlier version of PyTorch's tutorial on translation
with a sequence-to-sequence network. All of them recombine the states of the encoder, and they differ in the scores:

    encoder_decoder_dot   w_ij = x_i · h_j                encoder_only_dot   w_ij = x_i · x_j
    encoder_decoder_qkv   w_ij = (Q x_i) · (K h_j) / √D   encoder_only_qkv   w_ij = (Q x_i) · (K x_j) / √D
    fully_connected       w_ij = W_j · x_i + b_j

x_i is what asks, a state of the decoder or, where that is left out, of the encoder itself; h_j is a state of the
encoder. Each layer is called as ``layer(encoder, decoder)``, and each is a softmax of products, so that it goes
through ``attn_core.seam.model_attention`` and can be recorded and edited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from attn_core.checks import check_ndim
from attn_core.masks import MaskRule
from attn_core.seam import model_attention
from attn_core.variants.arguments import check_key_valid


class EncoderDecoderDot(nn.Module):
    """Scores x_i · h_j of decoder and encoder states as they are: "dot" of Luong et al. 2015, section 3.1.

    It scales nothing and has no parameters, so both sides need one width.
    """

    def forward(
        self, encoder: Tensor, decoder: Tensor | None = None, *, key_valid: Tensor | None = None
    ) -> Tensor:
        """Context of each step of the decoder.

        Args:
            encoder: (B, K, M).
            decoder: (B, Q, M).
            key_valid: (B, K) bool, False for padding of the encoder.
        Returns:
            (B, Q, M).
        Raises:
            TypeError, ValueError: if the decoder is missing, or shapes or dtypes do not belong together.
        """
        steps = _needed(decoder, "EncoderDecoderDot")
        return _aligned(self, steps, encoder, encoder, key_valid, scale=1.0)


class EncoderDecoderQkv(nn.Module):
    """Scores of decoder queries and encoder keys: cross-attention with one head (Vaswani et al. 2017, 3.2.3).

    Args:
        encoder_width, decoder_width: M of the two sides.
        width: D of query, key and value.
    """

    def __init__(self, encoder_width: int, decoder_width: int, width: int) -> None:
        super().__init__()
        self.query_projection = nn.Linear(decoder_width, width, bias=False)
        self.key_projection = nn.Linear(encoder_width, width, bias=False)
        self.value_projection = nn.Linear(encoder_width, width, bias=False)

    def forward(
        self, encoder: Tensor, decoder: Tensor | None = None, *, key_valid: Tensor | None = None
    ) -> Tensor:
        """Context of each step of the decoder.

        Args:
            encoder: (B, K, M of the encoder).
            decoder: (B, Q, M of the decoder).
            key_valid: (B, K) bool, False for padding of the encoder.
        Returns:
            (B, Q, D).
        Raises:
            TypeError, ValueError: if the decoder is missing, or shapes or dtypes do not belong together.
        """
        query = self.query_projection(_needed(decoder, "EncoderDecoderQkv"))
        key, value = self.key_projection(encoder), self.value_projection(encoder)
        return _aligned(self, query, key, value, key_valid)


class EncoderOnlyDot(nn.Module):
    """Scores x_i · x_j of the encoder's states with one another: their auto-correlation, a symmetric matrix.

    Nothing is learnt and nothing is scaled. The weights are not symmetric, since each row is divided by its own sum.
    """

    def forward(
        self, encoder: Tensor, decoder: Tensor | None = None, *, key_valid: Tensor | None = None
    ) -> Tensor:
        """Context of each state of the encoder.

        Args:
            encoder: (B, K, M).
            decoder: not looked at; it stands here so that the five are called alike.
            key_valid: (B, K) bool, False for padding of the encoder.
        Returns:
            (B, K, M).
        Raises:
            TypeError, ValueError: if shapes do not belong together.
        """
        return _aligned(self, encoder, encoder, encoder, key_valid, scale=1.0)


class EncoderOnlyQkv(nn.Module):
    """Scores of the encoder's own queries and keys: self-attention with one head (Vaswani et al. 2017, 3.2.3).

    Args:
        encoder_width: M.
        width: D of query, key and value.
    """

    def __init__(self, encoder_width: int, width: int) -> None:
        super().__init__()
        self.query_projection = nn.Linear(encoder_width, width, bias=False)
        self.key_projection = nn.Linear(encoder_width, width, bias=False)
        self.value_projection = nn.Linear(encoder_width, width, bias=False)

    def forward(
        self, encoder: Tensor, decoder: Tensor | None = None, *, key_valid: Tensor | None = None
    ) -> Tensor:
        """Context of each state of the encoder.

        Args:
            encoder: (B, K, M).
            decoder: not looked at; it stands here so that the five are called alike.
            key_valid: (B, K) bool, False for padding of the encoder.
        Returns:
            (B, K, D).
        Raises:
            TypeError, ValueError: if shapes or dtypes do not belong together.
        """
        query, key = self.query_projection(encoder), self.key_projection(encoder)
        return _aligned(self, query, key, self.value_projection(encoder), key_valid)


class FullyConnectedAlignment(nn.Module):
    """Scores W x_i + b, one for each place of the source: the decoder alone says where to look.

    The tutorial's decoder feeds [embedding of the last word; hidden state] to one linear layer with as many outputs
    as a source may have words. So a score knows the place of a state and not what the state holds: row j of W is a
    key that belongs to place j. The tutorial takes the softmax over all places and multiplies those beyond the source
    by zeros; here the softmax is over the places that are there, and rows sum to one.

    A small network over each *pair* of states is another thing, additive attention (``attn_core.AdditiveAttention``).

    Args:
        decoder_width: M of what the decoder hands in.
        max_length: the most places, and so the longest source.
        inner_width: of a tanh layer before the scores; None = none, as in the tutorial.
    Raises:
        ValueError: if ``max_length`` is below 1.
    """

    def __init__(self, decoder_width: int, max_length: int, *, inner_width: int | None = None) -> None:
        super().__init__()
        if max_length < 1:
            raise ValueError(
                f"FullyConnectedAlignment: max_length must be at least 1 but is {max_length}; pass the longest "
                "source's length."
            )
        self.inner = None if inner_width is None else nn.Linear(decoder_width, inner_width)
        self.places = nn.Linear(decoder_width if inner_width is None else inner_width, max_length)

    def forward(
        self, encoder: Tensor, decoder: Tensor | None = None, *, key_valid: Tensor | None = None
    ) -> Tensor:
        """Context of each step of the decoder.

        Args:
            encoder: (B, K, E), K at most ``max_length``.
            decoder: (B, Q, M).
            key_valid: (B, K) bool, False for padding of the encoder.
        Returns:
            (B, Q, E).
        Raises:
            TypeError, ValueError: if the decoder is missing, the source is too long, or shapes or dtypes do not
                belong together.
        """
        steps = _needed(decoder, "FullyConnectedAlignment")
        check_ndim(encoder, 3, "FullyConnectedAlignment: encoder")
        batch, length = encoder.shape[:2]
        if length > self.places.out_features:
            raise ValueError(
                f"FullyConnectedAlignment: encoder must have at most {self.places.out_features} states but has "
                f"{length}; cut the source or make a layer with a larger max_length."
            )
        query = steps if self.inner is None else self.inner(steps).tanh()
        key = self.places.weight[:length].expand(batch, -1, -1)  # (B, K, M), the same in each item
        bias = self.places.bias[:length].view(1, 1, 1, length)
        return _aligned(self, query, key, encoder, key_valid, bias=bias, scale=1.0)


@dataclass(frozen=True)
class Alignment:
    """One of the five, for a page that lists them.

    Attributes:
        title: what it is called.
        scores: its formula.
        uses_decoder: whether the decoder has a say in the weights.
        make: a layer for states of one width and sources up to a length.
    """

    title: str
    scores: str
    uses_decoder: bool
    make: Callable[[int, int], nn.Module]


ALIGNMENTS: dict[str, Alignment] = {
    "encoder_decoder_dot": Alignment(
        "Encoder–decoder dot product", "x_i · h_j", True, lambda width, length: EncoderDecoderDot()
    ),
    "encoder_decoder_qkv": Alignment(
        "Encoder–decoder QKV",
        "(Q x_i) · (K h_j) / √D",
        True,
        lambda width, length: EncoderDecoderQkv(width, width, width),
    ),
    "encoder_only_dot": Alignment(
        "Encoder-only dot product", "x_i · x_j", False, lambda width, length: EncoderOnlyDot()
    ),
    "encoder_only_qkv": Alignment(
        "Encoder-only QKV",
        "(Q x_i) · (K x_j) / √D",
        False,
        lambda width, length: EncoderOnlyQkv(width, width),
    ),
    "fully_connected": Alignment("Fully connected", "W_j · x_i + b_j", True, FullyConnectedAlignment),
}
"""The five by name, in the order of the article."""


def _needed(decoder: Tensor | None, function: str) -> Tensor:
    if decoder is None:
        raise ValueError(
            f"{function}: decoder must be states (B, Q, M) but is None; pass them, or use an encoder-only alignment."
        )
    check_ndim(decoder, 3, f"{function}: decoder")
    return decoder


def _aligned(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_valid: Tensor | None,
    *,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """(B, Q, E): one head of attention over states (B, N, ·)."""
    name = type(module).__name__
    for states in (query, key, value):
        check_ndim(states, 3, f"{name}: states")
    query, key, value = query[:, None], key[:, None], value[:, None]
    check_key_valid(key_valid, key, name)
    rule = MaskRule(key_valid=key_valid)
    return model_attention(module, query, key, value, rule=rule, bias=bias, scale=scale)[:, 0]
