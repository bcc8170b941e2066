"""The classic encoder–decoder that translates: a recurrent encoder, a recurrent decoder, and attention between them.

Four ways to look at the source, by ``scoring``:

* "additive": Bahdanau et al. 2014 (appendix A.2). The decoder's state of before asks, softmax(v · tanh(W s + U h)),
  and the context enters the next state and the readout.
* "dot", "general", "concat": Luong et al. 2015 (section 3.1). The state of now asks, and the word is read off the
  attentional vector tanh(W [context; state]); with ``input_feeding`` (section 3.3) this vector also enters the
  next state.
* None: no attention. The last state of the encoder is all that the decoder gets, at every step, as in Cho et al. 2014
  (section 2.2); Sutskever et al. 2014 give it as the first state alone.

Differences from the papers: recurrent cells are PyTorch's (its GRU multiplies by the reset gate after the matrix, not
before), the readout of the additive decoder sees the new state, and the output layer is the transposed embedding of
target words (Press & Wolf 2017).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from attn_core.checks import check_ndim
from attn_core.maps import DenseMap
from attn_core.models.decoding import Step
from attn_core.modules import AdditiveAttention, LuongAttention
from attn_core.seam import record_map, recording

Scoring = Literal["additive", "dot", "general", "concat"]
Cell = Literal["gru", "lstm"]

SCORINGS: tuple[Scoring | None, ...] = ("additive", "dot", "general", "concat", None)
PADDING = 0
"""Index of padding in both vocabularies."""


@dataclass(frozen=True, eq=False)
class SourceStates:
    """An encoded batch of source sentences.

    Attributes:
        states: (B, S, M) one a word.
        valid: (B, S) bool, False for padding.
        last: (B, M) what the encoder holds when it has read everything; of a bidirectional one the last state of
            each direction, (M / 2) each.
    """

    states: Tensor
    valid: Tensor
    last: Tensor

    def items(self, order: Tensor) -> SourceStates:
        """The sentences at these indices (n,)."""
        return SourceStates(self.states[order], self.valid[order], self.last[order])


@dataclass(frozen=True, eq=False)
class DecoderState:
    """What the decoder carries from one word to the next.

    Attributes:
        source: what it translates.
        hidden: (B, M).
        cell: (B, M) of an LSTM.
        fed: (B, embedding) the attentional vector of before, with input feeding.
    """

    source: SourceStates
    hidden: Tensor
    cell: Tensor | None = None
    fed: Tensor | None = None

    def items(self, order: Tensor) -> DecoderState:
        """The states at these indices (n,): a beam search goes on from the beams it chose."""
        cell = None if self.cell is None else self.cell[order]
        fed = None if self.fed is None else self.fed[order]
        return DecoderState(self.source.items(order), self.hidden[order], cell, fed)


class Translator(nn.Module):
    """Recurrent encoder–decoder with attention or without.

    Args:
        source_words, target_words: sizes of the vocabularies; index 0 is padding.
        embedding: width of word vectors and of the vector that a word is read off.
        hidden: M, width of a decoder's state and of an encoder's; a bidirectional encoder has M / 2 each way.
        scoring: how the decoder looks at the source; None = it does not.
        cell: of encoder and decoder.
        bidirectional: whether the encoder reads both ways.
        input_feeding: as above, for Luong's three.
        attention_width: inside the tanh of "additive" and "concat"; None = ``hidden``.
        dropout: on word vectors and on the vector that a word is read off, in training.
    Raises:
        ValueError: if one of them has a value it may not have.
    """

    def __init__(
        self,
        source_words: int,
        target_words: int,
        *,
        embedding: int = 160,
        hidden: int = 256,
        scoring: Scoring | None = "additive",
        cell: Cell = "gru",
        bidirectional: bool = True,
        input_feeding: bool = False,
        attention_width: int | None = None,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        _check_options(scoring, cell, hidden, bidirectional, input_feeding)
        self.scoring, self.cell, self.input_feeding = scoring, cell, input_feeding
        recurrent = nn.GRU if cell == "gru" else nn.LSTM
        directions = 2 if bidirectional else 1
        luong = scoring in ("dot", "general", "concat")
        self.source_embedding = nn.Embedding(source_words, embedding, padding_idx=PADDING)
        self.encoder = recurrent(
            embedding, hidden // directions, batch_first=True, bidirectional=bidirectional
        )
        self.start = nn.Linear(hidden // directions, hidden * (1 if cell == "gru" else 2))
        self.target_embedding = nn.Embedding(target_words, embedding, padding_idx=PADDING)
        entering = (embedding if input_feeding else 0) if luong else hidden
        self.decoder = recurrent(embedding + entering, hidden, batch_first=True)
        self.attention: nn.Module | None = None
        if scoring == "additive":
            self.attention = AdditiveAttention(hidden, hidden, attention_width or hidden)
        elif scoring is not None:
            self.attention = LuongAttention(hidden, hidden, scoring=scoring, attention_width=attention_width)
        if luong:
            self.attentional = nn.Linear(2 * hidden, embedding, bias=False)
        else:
            self.readout = nn.Linear(2 * hidden + embedding, 2 * embedding)
        self.output_bias = nn.Parameter(torch.zeros(target_words))
        self.dropout = nn.Dropout(dropout)
        for table in (self.source_embedding, self.target_embedding):
            nn.init.normal_(table.weight, std=embedding**-0.5)  # scores of a tied output start near ±1
            with torch.no_grad():
                table.weight[PADDING] = 0.0

    @property
    def takes_whole_target(self) -> bool:
        """Whether all steps of a given target are one call: no step waits for the attention of the one before."""
        return self.scoring != "additive" and not self.input_feeding

    def forward(self, source_ids: Tensor, target_ids: Tensor) -> Tensor:
        """Scores of each next word, the words before it given (teacher forcing).

        The attention of all steps is recorded as one map (B, 1, T, S).

        Args:
            source_ids: (B, S) word indices, padding at the end.
            target_ids: (B, T), the mark of the beginning first, padding at the end.
        Returns:
            (B, T, V): row t is of the word that follows ``target_ids[:, t]``.
        Raises:
            ValueError: if shapes do not fit, a source holds padding alone, or a target holds nothing.
        """
        return self.word_scores(self.vectors(source_ids, target_ids))

    def vectors(self, source_ids: Tensor, target_ids: Tensor) -> Tensor:
        """(B, T, embedding): the vectors that ``forward`` reads words off."""
        embedded, state = self._begun(source_ids, target_ids)
        if self.takes_whole_target:
            hidden, context, _ = self._advance(embedded, state)
        else:
            hidden, context, _ = self._one_by_one(embedded, state)
        vectors: Tensor = self.dropout(self._read(embedded, hidden, context))
        return vectors

    def vectors_and_weights(self, source_ids: Tensor, target_ids: Tensor) -> tuple[Tensor, Tensor]:
        """``vectors``, and the weights (B, T, S) of "additive" or "concat" as part of the graph.

        A loss may ask something of the alignment.

        Raises:
            ValueError: as ``forward``, or if the attention hands out no weights.
        """
        if self.scoring not in ("additive", "concat"):
            raise ValueError(
                f"Translator.vectors_and_weights: scoring must be additive or concat but is {self.scoring!r}; the "
                "others keep no weights in the graph."
            )
        embedded, state = self._begun(source_ids, target_ids)
        hidden, context, weights = self._one_by_one(embedded, state, graph=True)
        return self.dropout(self._read(embedded, hidden, context)), weights[:, 0]

    def _begun(self, source_ids: Tensor, target_ids: Tensor) -> tuple[Tensor, DecoderState]:
        """The vectors (B, T, embedding) of the words before, and the decoder before the first of them."""
        source = self.encode(source_ids)
        check_ndim(target_ids, 2, "Translator: target_ids")
        if target_ids.shape[0] != source_ids.shape[0] or not target_ids.shape[1]:
            raise ValueError(
                f"Translator: target_ids must be ({source_ids.shape[0]}, T) with T at least 1 but is "
                f"{tuple(target_ids.shape)}; begin each target with the mark of the beginning."
            )
        return self.dropout(self.target_embedding(target_ids)), self.begin(source)

    def encode(self, source_ids: Tensor) -> SourceStates:
        """Read source sentences (B, S); padding changes no state and has state 0.

        Raises:
            ValueError: if padding does not stand at the end, or a row holds nothing else.
        """
        check_ndim(source_ids, 2, "Translator: source_ids")
        valid = source_ids != PADDING
        lengths = valid.sum(-1)
        places = torch.arange(source_ids.shape[1], device=source_ids.device)
        if bool((lengths == 0).any()) or bool((valid != (places < lengths[:, None])).any()):
            raise ValueError(
                "Translator: source_ids must hold at least one word a row, and padding must stand at the end; move "
                "it there and leave empty sentences out."
            )
        packed = nn.utils.rnn.pack_padded_sequence(
            self.dropout(self.source_embedding(source_ids)),
            lengths.cpu(),
            batch_first=True,
            enforce_sorted=False,
        )
        output, last = self.encoder(packed)
        states, _ = nn.utils.rnn.pad_packed_sequence(
            output, batch_first=True, total_length=source_ids.shape[1]
        )
        last = last if self.cell == "gru" else last[0]  # (directions, B, M / directions)
        return SourceStates(states, valid, last.transpose(0, 1).flatten(1))

    def begin(self, source: SourceStates) -> DecoderState:
        """The decoder before its first word: tanh(W h) of the state that a last direction of reading ends with.

        Of a bidirectional encoder it is that of the backward direction, at the first word (Bahdanau et al. 2014,
        appendix A.2.2).
        """
        first = torch.tanh(self.start(source.last[:, -self.start.in_features :]))
        hidden, *cell = first.chunk(1 if self.cell == "gru" else 2, dim=-1)
        fed = hidden.new_zeros(hidden.shape[0], self.target_embedding.embedding_dim)
        return DecoderState(source, hidden, cell[0] if cell else None, fed if self.input_feeding else None)

    def step(self, words: Tensor, state: DecoderState) -> Step[DecoderState]:
        """One more word; all steps together equal one ``forward``.

        Args:
            words: (B,) the words before: the mark of the beginning first.
        Returns:
            scores (B, V) of the next word, the new state, and the weights (B, S) of the source words (None without
            attention).
        """
        embedded = self.dropout(self.target_embedding(words[:, None]))
        with recording() as record:
            hidden, context, state = self._advance(embedded, state)
        for call in record.calls:
            record_map(call.module, call.map)  # for who records outside
        weights = record.calls[0].map.weights()[:, 0, 0] if record.calls else None
        scores = self.word_scores(self.dropout(self._read(embedded, hidden, context)))
        return Step(scores[:, 0], state, weights)

    def word_scores(self, vectors: Tensor) -> Tensor:
        """Scores (..., V) before the softmax, of vectors (..., embedding)."""
        scores: Tensor = nn.functional.linear(vectors, self.target_embedding.weight, self.output_bias)
        return scores

    def _one_by_one(
        self, embedded: Tensor, state: DecoderState, *, graph: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """States and contexts (B, T, M) and weights (B, 1, T, S), each step waiting for the one before.

        Args:
            graph: hand the weights out as part of the graph.
        """
        hiddens, contexts = [], []
        with recording(graph=graph) as record:
            for index in range(embedded.shape[1]):
                hidden, context, state = self._advance(embedded[:, index : index + 1], state)
                hiddens.append(hidden)
                contexts.append(context)
        rows = [call.map.weights() if call.weights is None else call.weights for call in record.calls]
        weights = torch.cat(rows, dim=2)
        record_map(record.calls[0].module, DenseMap(stored=weights.detach(), key_valid=state.source.valid))
        return torch.cat(hiddens, dim=1), torch.cat(contexts, dim=1), weights

    def _advance(self, embedded: Tensor, state: DecoderState) -> tuple[Tensor, Tensor, DecoderState]:
        """States and contexts (B, n, M) of n more words (B, n, embedding), and the state after them.

        n is 1 unless ``takes_whole_target``.
        """
        if self.scoring == "additive" or self.scoring is None:
            context = self._context(state.hidden[:, None], state.source)
            context = context.expand(-1, embedded.shape[1], -1)
            hidden, state = self._recur(torch.cat([embedded, context], dim=-1), state)
            return hidden, context, state
        if state.fed is not None:
            hidden, state = self._recur(torch.cat([embedded, state.fed[:, None]], dim=-1), state)
        else:
            hidden, state = self._recur(embedded, state)
        context = self._context(hidden, state.source)
        if state.fed is not None:
            fed = self._read(embedded, hidden, context)[:, -1]
            state = DecoderState(state.source, state.hidden, state.cell, fed)
        return hidden, context, state

    def _context(self, query: Tensor, source: SourceStates) -> Tensor:
        """(B, n, M): what queries (B, n, M) get of the source; without attention the same for all, (B, 1, M)."""
        if self.attention is None:
            return source.last[:, None]
        context: Tensor = self.attention(query, source.states, key_valid=source.valid)
        return context

    def _recur(self, entering: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """States (B, n, M) of the recurrent cell for what enters, and the decoder's state after them."""
        before = state.hidden[None].contiguous()
        if state.cell is None:
            hidden, after = self.decoder(entering, before)
            return hidden, DecoderState(state.source, after[0], None, state.fed)
        hidden, (after, cell) = self.decoder(entering, (before, state.cell[None].contiguous()))
        return hidden, DecoderState(state.source, after[0], cell[0], state.fed)

    def _read(self, embedded: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """(B, n, embedding): what words are read off.

        With Luong's scores tanh(W [context; state]); else the largest of each two of W [state; word before; context]
        (maxout), as in Bahdanau et al. 2014 (appendix A.2.2) and Cho et al. 2014 (appendix).
        """
        if self.scoring in ("dot", "general", "concat"):
            read: Tensor = torch.tanh(self.attentional(torch.cat([context, hidden], dim=-1)))
            return read
        read = self.readout(torch.cat([hidden, embedded, context], dim=-1))
        return read.view(*read.shape[:-1], -1, 2).amax(-1)


def _check_options(
    scoring: str | None, cell: str, hidden: int, bidirectional: bool, input_feeding: bool
) -> None:
    if scoring not in SCORINGS:
        raise ValueError(
            f"Translator: scoring must be additive, dot, general, concat or None but is {scoring!r}; choose one of "
            "them."
        )
    if cell not in ("gru", "lstm"):
        raise ValueError(f"Translator: cell must be gru or lstm but is {cell!r}; choose one of them.")
    if bidirectional and hidden % 2:
        raise ValueError(
            f"Translator: hidden must be even for a bidirectional encoder but is {hidden}; each direction has half."
        )
    if input_feeding and scoring not in ("dot", "general", "concat"):
        raise ValueError(
            f"Translator: input_feeding must be False with scoring={scoring!r}; it belongs to dot, general and "
            "concat."
        )
