"""Attention layers with parameters of their own: additive, Luong's and multi-head attention.

They take and give hidden states (B, N, M). Whatever is a softmax of query · key goes through
``attn_core.seam.model_attention``, other weights through ``weighted_values``: all can be recorded and edited.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from attn_core.bias import Bias
from attn_core.checks import check_ndim
from attn_core.functional import at_least_float32, masked_softmax
from attn_core.masks import MaskRule
from attn_core.positions import alibi_bias, rotary
from attn_core.scores import additive_scores, concat_scores, dot_scores
from attn_core.seam import model_attention, weighted_values

Scoring = Literal["dot", "general", "concat"]
Alignment = Literal["global", "local-m", "local-p"]


class AdditiveAttention(nn.Module):
    """softmax(v · tanh(W query + U key + b)) over the states of a source: Bahdanau et al. 2014, section 3.1.

    Args:
        query_width: D, of the decoder's state.
        source_width: E, of the states that are attended to.
        attention_width: A, inside the tanh.
        bias: whether there is a b.
    """

    def __init__(
        self, query_width: int, source_width: int, attention_width: int, *, bias: bool = True
    ) -> None:
        super().__init__()
        self.query_projection = nn.Linear(query_width, attention_width, bias=bias)
        self.key_projection = nn.Linear(source_width, attention_width, bias=False)
        self.vector = nn.Linear(attention_width, 1, bias=False)

    def forward(self, query: Tensor, source: Tensor, *, key_valid: Tensor | None = None) -> Tensor:
        """Context of each query.

        Args:
            query: (B, Q, D).
            source: (B, K, E).
            key_valid: (B, K) bool, False for padding of the source.
        Returns:
            (B, Q, E).
        Raises:
            TypeError, ValueError: if shapes or dtypes do not belong together.
        """
        _check_states(query, source, key_valid, "AdditiveAttention")
        scores = additive_scores(
            query[:, None],
            source[:, None],
            self.query_projection.weight,
            self.key_projection.weight,
            self.vector.weight[0],
            self.query_projection.bias,
        )
        return _dense_context(self, scores, source, MaskRule(key_valid=key_valid))


class LuongAttention(nn.Module):
    """Global and local attention over the states of a source: Luong et al. 2015, sections 3.1 and 3.2.

    Each query is a step of the decoder. A local alignment sees the source positions at most ``half_window`` from its
    centre p: "local-m" takes p = step, "local-p" predicts p = S · sigmoid(v · tanh(W query)) for a source of S states
    and multiplies the weights by exp(−(position − p)² / 2σ²), σ = half_window / 2, without normalising them again, so
    its rows sum to less than one.

    Args:
        query_width: D, of the decoder's state.
        source_width: E, of the states that are attended to; "dot" needs the width of the query.
        scoring: the score of a pair, as in ``attn_core.scores``.
        alignment: which positions a step may see.
        half_window: D in the paper, which found 10 to do well.
        attention_width: A, inside the tanh of "concat" and of "local-p"; None = ``query_width``.
    Raises:
        ValueError: if one of them has a value it may not have.
    """

    def __init__(
        self,
        query_width: int,
        source_width: int,
        *,
        scoring: Scoring = "general",
        alignment: Alignment = "global",
        half_window: int = 10,
        attention_width: int | None = None,
    ) -> None:
        super().__init__()
        if scoring not in ("dot", "general", "concat"):
            raise ValueError(
                f"LuongAttention: scoring must be dot, general or concat but is {scoring!r}; choose one of them."
            )
        if alignment not in ("global", "local-m", "local-p"):
            raise ValueError(
                f"LuongAttention: alignment must be global, local-m or local-p but is {alignment!r}; "
                "choose one of them."
            )
        if scoring == "dot" and query_width != source_width:
            raise ValueError(
                f"LuongAttention: scoring='dot' needs one width but query_width is {query_width} and source_width "
                f"{source_width}; choose 'general'."
            )
        if half_window < 1:
            raise ValueError(f"LuongAttention: half_window must be at least 1 but is {half_window}.")
        self.scoring, self.alignment, self.half_window = scoring, alignment, half_window
        inner = query_width if attention_width is None else attention_width
        if scoring == "general":
            self.query_projection = nn.Linear(query_width, source_width, bias=False)
        if scoring == "concat":
            self.pair_projection = nn.Linear(query_width + source_width, inner, bias=False)
            self.vector = nn.Linear(inner, 1, bias=False)
        if alignment == "local-p":
            self.position_projection = nn.Linear(query_width, inner, bias=False)
            self.position_vector = nn.Linear(inner, 1, bias=False)

    def forward(
        self, query: Tensor, source: Tensor, *, key_valid: Tensor | None = None, first_step: int = 0
    ) -> Tensor:
        """Context of each step.

        Args:
            query: (B, Q, D).
            source: (B, K, E).
            key_valid: (B, K) bool, False for padding of the source, which stands at its end.
            first_step: which step of the decoder ``query[:, 0]`` is; "local-m" alone asks for it.
        Returns:
            (B, Q, E).
        Raises:
            TypeError, ValueError: if shapes or dtypes do not belong together.
        """
        _check_states(query, source, key_valid, "LuongAttention")
        if self.alignment == "local-p":
            centre = self.predicted_centre(query, source.shape[1], key_valid)
            scores, rule = self._scores(query, source), self._near(centre.detach(), key_valid)
            places = torch.arange(source.shape[1], device=source.device, dtype=centre.dtype)
            distance = (places - centre[..., None]) / (self.half_window / 2)  # (B, Q, K), in units of σ
            return _dense_context(self, scores, source, rule, factor=torch.exp(-(distance**2) / 2)[:, None])
        if self.alignment == "local-m":
            rule = self._near(torch.arange(query.shape[1], device=query.device)[None] + first_step, key_valid)
        else:
            rule = MaskRule(key_valid=key_valid)
        if self.scoring == "concat":
            return _dense_context(self, self._scores(query, source), source, rule)
        states = source[:, None]  # (B, 1, K, E)
        return model_attention(self, self._aimed(query)[:, None], states, states, rule=rule, scale=1.0)[:, 0]

    def predicted_centre(self, query: Tensor, keys: int, key_valid: Tensor | None = None) -> Tensor:
        """(B, Q): where "local-p" looks, 0 to the length of the source: section 3.2 of the paper.

        Args:
            query: (B, Q, D).
            keys: K, which is the length where ``key_valid`` (B, K) does not say otherwise.
        """
        share = torch.sigmoid(self.position_vector(torch.tanh(self.position_projection(query))))[..., 0]
        return share * (keys if key_valid is None else key_valid.sum(-1, keepdim=True).to(share.dtype))

    def _aimed(self, query: Tensor) -> Tensor:
        """(B, Q, E): the query whose plain product with a state is the score."""
        aimed: Tensor = self.query_projection(query) if self.scoring == "general" else query
        return aimed

    def _scores(self, query: Tensor, source: Tensor) -> Tensor:
        """(B, 1, Q, K)."""
        if self.scoring == "concat":
            weight, vector = self.pair_projection.weight, self.vector.weight[0]
            return concat_scores(query[:, None], source[:, None], weight, vector)
        return dot_scores(self._aimed(query)[:, None], source[:, None])

    def _near(self, centre: Tensor, key_valid: Tensor | None) -> MaskRule:
        """Positions at most ``half_window`` from a centre (B or 1, Q)."""

        def near(item: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
            return (column - centre[item, row]).abs() <= self.half_window

        return MaskRule(key_valid=key_valid, predicate=near, predicate_batch=centre.shape[0])


@dataclass(frozen=True, eq=False)
class KeyValueCache:
    """Keys and values of the tokens so far, which the tokens to come attend to.

    Attributes:
        key, value: (B, G, K, D), keys after rotary embedding.
        key_valid: (B, K) bool, False for padding; None = all real.
        seen: how many tokens came so far; more than K where a window let old ones go.
    """

    key: Tensor
    value: Tensor
    key_valid: Tensor | None = None
    seen: int = 0

    def extended(self, key: Tensor, value: Tensor, key_valid: Tensor | None = None) -> KeyValueCache:
        """The cache with the keys and values (B, G, n, D) of n more tokens."""
        if key_valid is not None or self.key_valid is not None:
            parts = [
                torch.ones(keys.shape[0], keys.shape[2], dtype=torch.bool, device=keys.device)
                if valid is None
                else valid
                for keys, valid in ((self.key, self.key_valid), (key, key_valid))
            ]
            key_valid = torch.cat(parts, dim=1)
        return KeyValueCache(
            torch.cat([self.key, key], dim=2),
            torch.cat([self.value, value], dim=2),
            key_valid,
            self.seen + key.shape[2],
        )

    def last(self, count: int) -> KeyValueCache:
        """The cache with the last ``count`` tokens alone."""
        start = max(self.key.shape[2] - count, 0)
        valid = None if self.key_valid is None else self.key_valid[:, start:]
        return KeyValueCache(self.key[:, :, start:], self.value[:, :, start:], valid, self.seen)

    def items(self, order: Tensor) -> KeyValueCache:
        """The cache of these batch items, (n,) indices: a beam search goes on from the beams it chose."""
        valid = None if self.key_valid is None else self.key_valid[order]
        return KeyValueCache(self.key[order], self.value[order], valid, self.seen)


class MultiHeadAttention(nn.Module):
    """Multi-head attention of a sequence to itself or to a source: Vaswani et al. 2017, section 3.2.2.

    With fewer key–value heads than heads it is grouped-query attention (Ainslie et al. 2023), with one it is
    multi-query attention (Shazeer 2019). There is no dropout on weights.

    Args:
        width: M, divisible by ``heads``.
        heads: H.
        num_kv_heads: G, divides H; None = H.
        source_width: of a source of another width; None = ``width``.
        causal, window: as in ``attn_core.masks.MaskRule``.
        bias: whether the four projections have one.
        rotary_base: rotary embedding with this base (Su et al. 2021); None = none.
        rotary_interleaved: its pairing, as in ``attn_core.positions.rotary``.
        alibi: scores lose in proportion to the distance (Press et al. 2022).
    Raises:
        ValueError: if the heads do not divide as they must.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        num_kv_heads: int | None = None,
        source_width: int | None = None,
        causal: bool = False,
        window: int | None = None,
        bias: bool = True,
        rotary_base: float | None = None,
        rotary_interleaved: bool = False,
        alibi: bool = False,
    ) -> None:
        super().__init__()
        num_kv_heads = heads if num_kv_heads is None else num_kv_heads
        if heads < 1 or width % heads:
            raise ValueError(
                f"MultiHeadAttention: width must be a multiple of heads but is {width} for {heads} heads; "
                "change one of them."
            )
        if num_kv_heads < 1 or heads % num_kv_heads:
            raise ValueError(
                f"MultiHeadAttention: num_kv_heads must divide heads but is {num_kv_heads} for {heads} heads; "
                "grouped attention needs whole groups."
            )
        MaskRule(causal=causal, window=window)  # raises where the window is none
        source_width = width if source_width is None else source_width
        self.heads, self.num_kv_heads, self.head_width = heads, num_kv_heads, width // heads
        self.causal, self.window, self.alibi = causal, window, alibi
        self.rotary_base, self.rotary_interleaved = rotary_base, rotary_interleaved
        self.query_projection = nn.Linear(width, width, bias=bias)
        self.key_projection = nn.Linear(source_width, num_kv_heads * self.head_width, bias=bias)
        self.value_projection = nn.Linear(source_width, num_kv_heads * self.head_width, bias=bias)
        self.output_projection = nn.Linear(width, width, bias=bias)

    def forward(
        self,
        hidden: Tensor,
        source: Tensor | None = None,
        *,
        key_valid: Tensor | None = None,
        bias: Bias | None = None,
    ) -> Tensor:
        """New hidden states.

        Args:
            hidden: (B, Q, M), what the queries are made from.
            source: (B, K, M of the source), what keys and values are made from; None = ``hidden``.
            key_valid: (B, K) bool, False for padding of the source.
            bias: added to the scores, as in ``attn_core.functional.attention``; not with ``alibi``.
        Returns:
            (B, Q, M).
        Raises:
            TypeError, ValueError: if shapes or dtypes do not belong together, or if positions of two sequences
                would have to be compared (a source with rotary embedding or ALiBi).
        """
        if source is not None and (self.rotary_base is not None or self.alibi):
            raise ValueError(
                "MultiHeadAttention: rotary embedding and ALiBi need the positions of one sequence, but a source was "
                "given; make the layer that attends to a source without them."
            )
        source = hidden if source is None else source
        _check_states(hidden, source, key_valid, "MultiHeadAttention")
        query, key, value = self._projected(hidden, source, first=0)
        return self._attended(query, key, value, key_valid, bias)

    def step(
        self, hidden: Tensor, cache: KeyValueCache | None = None, *, key_valid: Tensor | None = None
    ) -> tuple[Tensor, KeyValueCache]:
        """New hidden states of tokens that follow those of a cache; all steps together equal one ``forward``.

        With a window of w, the cache keeps w − 1 tokens, which is all that the next one sees.

        Args:
            hidden: (B, n, M) of n more tokens: the whole prompt at first (prefill), then as many as there are.
            cache: of the tokens before; None at first.
            key_valid: (B, n) bool, False for padding among these tokens.
        Returns:
            (B, n, M), and the cache for the next step.
        Raises:
            TypeError, ValueError: if shapes or dtypes do not belong together, or the layer is not causal: then
                tokens to come would change those that were.
        """
        if not self.causal:
            raise ValueError(
                "MultiHeadAttention.step: the layer must be causal; make it with causal=True or call it whole."
            )
        _check_states(hidden, hidden, key_valid, "MultiHeadAttention.step")
        query, key, value = self._projected(hidden, hidden, first=0 if cache is None else cache.seen)
        if cache is None:
            cache = KeyValueCache(key, value, key_valid, key.shape[2])
        else:
            cache = cache.extended(key, value, key_valid)
        output = self._attended(query, cache.key, cache.value, cache.key_valid, None)
        return output, cache if self.window is None else cache.last(self.window - 1)

    def _projected(self, hidden: Tensor, source: Tensor, *, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """Query (B, H, Q, D), key and value (B, G, K, D), turned to their positions from ``first`` on."""
        query = self._split(self.query_projection(hidden), self.heads)
        key = self._split(self.key_projection(source), self.num_kv_heads)
        value = self._split(self.value_projection(source), self.num_kv_heads)
        if self.rotary_base is not None:
            places = torch.arange(first, first + hidden.shape[1], device=hidden.device)
            query, key = (
                rotary(x, places, base=self.rotary_base, interleaved=self.rotary_interleaved)
                for x in (query, key)
            )
        return query, key, value

    def _split(self, projected: Tensor, heads: int) -> Tensor:
        """(B, N, heads · D) -> (B, heads, N, D)."""
        return projected.view(*projected.shape[:2], heads, self.head_width).transpose(1, 2)

    def _attended(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, bias: Bias | None
    ) -> Tensor:
        if self.alibi:
            if bias is not None:
                raise ValueError(
                    "MultiHeadAttention: bias must be None in a layer with ALiBi; add it without."
                )
            dtype = torch.promote_types(query.dtype, torch.float32)
            bias = alibi_bias(self.heads, query.shape[2], key.shape[2], dtype=dtype, device=query.device)
        rule = MaskRule(causal=self.causal, window=self.window, key_valid=key_valid)
        context = model_attention(self, query, key, value, rule=rule, bias=bias)  # (B, H, Q, D)
        output: Tensor = self.output_projection(context.transpose(1, 2).flatten(2))
        return output


def _check_states(hidden: Tensor, source: Tensor, key_valid: Tensor | None, function: str) -> None:
    check_ndim(hidden, 3, f"{function}: hidden states")
    check_ndim(source, 3, f"{function}: source")
    if key_valid is not None and tuple(key_valid.shape) != tuple(source.shape[:2]):
        raise ValueError(
            f"{function}: key_valid must be {tuple(source.shape[:2])} but is {tuple(key_valid.shape)}; pass one "
            "value for each position of the source."
        )


def _dense_context(
    module: nn.Module, scores: Tensor, source: Tensor, rule: MaskRule, *, factor: Tensor | None = None
) -> Tensor:
    """(B, Q, E): states weighted by softmax(scores) · factor.

    Args:
        scores: (B, 1, Q, K).
        source: (B, K, E).
        factor: (B, 1, Q, K) that the weights are multiplied by.
    """
    queries, keys = scores.shape[2:]
    rows, columns = (torch.arange(n, device=scores.device) for n in (queries, keys))
    weights, _ = masked_softmax(
        at_least_float32(scores), rule.allowed(rows, columns, queries=queries, keys=keys)
    )
    weights = weights if factor is None else weights * factor
    return weighted_values(module, weights, source[:, None], rule=rule)[:, 0]
