"""What a prediction loses when a part of the input is taken away: leave one out, and the inputs that curves run.

f(x) − f(x without i) is the oldest evidence there is: Zeiler & Fergus 2014, "Visualizing and Understanding
Convolutional Networks", section 4.2, for pictures; Li, Monroe & Jurafsky 2016, "Understanding Neural Networks through
Representation Erasure", section 3, for text. Nothing is differentiated, so it works on any model; but an input with a
hole is one that the model may never have seen, and two parts that say the same hide each other.

Parts are replaced where a model takes its input in: at the word embeddings or the pixels (``entry_of``), by those of
an input that says nothing (``blank_of``). ``target_values`` runs what comes of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from analysis import resizing
from analysis.evidence.explanation import Explanation, explanation_of, kept_positions, position_count
from analysis.evidence.passes import ForwardPass, graph_outputs, input_embeddings, plain_outputs
from analysis.evidence.products import quick_products
from analysis.evidence.targets import Outputs, Target
from analysis.inputs import Inputs, PatchGrid, preparation_of
from analysis.models import LoadedModel
from analysis.words import word_groups
from attn_core.checks import check_ndim
from attn_core.errors import UnsupportedModelError

Replacement = Literal["default", "remove", "mask", "pad", "mean", "zero", "black", "white", "blurred"]
"""What stands in place of a token or patch, and where the path of Integrated Gradients begins.

"default": the mask token of a text where the model has one, else "mean".
"mean": the mean of all word embeddings of the model; the mean colour of the picture.
"zero": zero vectors; 0 in the model's units, which is the mean colour of its training pictures.
"mask", "pad" (text): the model's token of that name. "remove" (text): the token is deleted, later ones move up.
"black", "white", "blurred" (pictures): the colour; the picture under a Gaussian as wide as a patch.
"""

TEXT_FILLS = ("mask", "pad", "mean", "zero")
"""What a token may be replaced by."""

PICTURE_FILLS = ("mean", "zero", "black", "white", "blurred")
"""What a patch may be replaced by."""

FILL_WORDS = MappingProxyType(
    {
        ("text", "mean"): "the mean of the model's word embeddings",
        ("text", "zero"): "zero vectors",
        ("picture", "mean"): "the picture's mean colour",
        ("picture", "zero"): "0 in the model's units, the mean colour of its training pictures",
        ("picture", "black"): "black",
        ("picture", "white"): "white",
        ("picture", "blurred"): "the blurred picture",
    }
)
"""What a fill is, in words; a token goes by its own name."""

KEPT_LOGITS = 4_000_000
"""Most numbers that a pass keeps of its inputs with parts replaced."""

MOST_POSITIONS = 20_000_000
"""Most positions that all passes of one answer may have together: some hours of a small model on two cores."""

BATCH_TOKENS = 2000
"""Positions of all items of a batch together: larger batches gain nothing on a CPU."""


def leave_one_out(
    run: ForwardPass,
    target: Target,
    *,
    replacement: Replacement = "default",
    progress: Callable[[float], None] | None = None,
) -> Explanation:
    """f(x) − f(x without it) of every token or patch, one at a time.

    Args:
        replacement: what stands in its place; see ``Replacement``.
        progress: told how much is done, 0 to 1; what it raises stops the method and comes out of it.
    Raises:
        ValueError, UnsupportedModelError: as ``target_values``.
    """
    count = len(kept_positions(run.inputs))
    parts = [(index,) for index in range(count)]
    return _left_out("leave_one_out", run, target, parts, replacement, progress)


def leave_words_out(
    run: ForwardPass,
    target: Target,
    *,
    replacement: Replacement = "default",
    progress: Callable[[float], None] | None = None,
) -> Explanation:
    """f(x) − f(x without the word) of every word, all its tokens at once, shared equally between its tokens.

    So ``explanation.to_words`` gives the words' own numbers back.

    Args:
        replacement, progress: as in ``leave_one_out``.
    Raises:
        ValueError: for a picture, and as ``target_values``.
        UnsupportedModelError: as ``target_values``.
    """
    if run.inputs.tokens is None:
        raise ValueError("leave_words_out: run must be of a text but is of a picture; use leave_one_out.")
    return _left_out("leave_words_out", run, target, word_parts(run), replacement, progress)


def check_passes(run: ForwardPass, passes: int, caller: str) -> None:
    """Refuse what would take days.

    Raises:
        ValueError: with the numbers and what to choose instead.
    """
    positions = position_count(run.inputs)
    if passes * positions > MOST_POSITIONS:
        smaller = "a smaller resolution" if run.inputs.grid is not None else "a shorter text"
        raise ValueError(
            f"{caller}: {passes:,} passes over {positions:,} positions each would take days; choose {smaller}, or a "
            "method of one pass, such as CDAM, GradCAM or relevance."
        )


def word_parts(run: ForwardPass) -> list[tuple[int, ...]]:
    """Indices, among the kept positions of a text, of the tokens of each word."""
    order = {position: index for index, position in enumerate(kept_positions(run.inputs).tolist())}
    groups = word_groups(run.inputs.tokens or ())
    return [tuple(order[position] for position in group) for group in groups if group[0] in order]


def _left_out(
    method: str,
    run: ForwardPass,
    target: Target,
    parts: Sequence[tuple[int, ...]],
    replacement: Replacement,
    progress: Callable[[float], None] | None,
) -> Explanation:
    """The fall of the target without each part, shared equally between its tokens or patches."""
    kept = kept_positions(run.inputs)
    check_passes(run, 1 + len(parts), method)
    masks = torch.zeros(1 + len(parts), len(kept), dtype=torch.bool)  # the first is the untouched input
    for row, part in enumerate(parts, start=1):
        masks[row, list(part)] = True
    values = target_values(run, target, masks, replacement=replacement, progress=progress)
    raw = torch.zeros(position_count(run.inputs), dtype=values.dtype)
    for part, fall in zip(parts, values[0] - values[1:], strict=True):
        raw[kept[list(part)]] = fall / len(part)
    return explanation_of(
        method,
        raw,
        run.inputs,
        target=target.label,
        details={
            "value": float(values[0]),
            "replacement": resolved(run, replacement, f"{method}: replacement"),
        },
        notes=(replacement_note(run, replacement),),
    )


# Values of many masked inputs ------------------------------------------------------------------------------------


def target_values(
    run: ForwardPass,
    target: Target,
    masks: Tensor,
    *,
    replacement: Replacement = "default",
    progress: Callable[[float], None] | None = None,
) -> Tensor:
    """(B,) the target's number for the input with some of its tokens or patches replaced, on the CPU.

    Masks run in batches of about ``BATCH_TOKENS`` positions. Under "remove" inputs of equal length and with their
    special tokens in the same places share a batch, so there is no padding.

    Args:
        masks: (B, n) bool over the kept positions, True = replaced; an all-False row is the input itself.
        replacement: see ``Replacement``.
        progress: told how much is done, 0 to 1; what it raises comes out.
    Raises:
        TypeError: if ``masks`` is not boolean.
        ValueError: if ``masks`` does not fit the input, ``replacement`` is not one of this kind of input, "remove"
            would delete everything or move the position that the target reads, or the target's number is not finite.
        UnsupportedModelError: if the model has no such token, or no table of word embeddings to take a mean of.
    """
    masks = _checked(run, masks)
    kind = resolved(run, replacement, "target_values: replacement")
    if kind == "remove" and _reads_a_position(run, target) and bool(masks.any()):
        raise ValueError(
            f"target_values: replacement must not be 'remove' for {target.label!r}, which reads one position of the "
            "text; choose 'default'."
        )
    if not len(masks):
        return torch.zeros(0, dtype=torch.promote_types(run.model.dtype, torch.float32))
    if target.reads_classes and run.outputs.logits is not None and run.outputs.logits.ndim == 2:
        logits = _masked_logits(run, masks, kind, progress)
        values = target.value(Outputs(logits, None, run.outputs.kept)).detach()
    else:
        values = _collected(run, masks, kind, target.value, progress)
    values = values.cpu().to(torch.promote_types(run.model.dtype, torch.float32))
    if not bool(values.isfinite().all()):
        row = int((~values.isfinite()).nonzero()[0, 0])
        raise ValueError(
            f"target_values: {target.label!r} is {float(values[row])} with {int(masks[row].sum())} of "
            f"{masks.shape[1]} tokens or patches replaced; choose another target or replacement."
        )
    return values


def _masked_logits(
    run: ForwardPass, masks: Tensor, kind: str, progress: Callable[[float], None] | None
) -> Tensor:
    """(B, C): they serve every target of the head, so the latest are kept with the pass."""
    digest = hashlib.blake2b(np.packbits(masks.numpy(), axis=1).tobytes(), digest_size=16).digest()
    key = (kind, tuple(masks.shape), digest)
    found = run.masked.get(key)
    if found is None:
        found = _collected(run, masks, kind, _logits, progress)
        run.masked[key] = found
        while len(run.masked) > 1 and sum(kept.numel() for kept in run.masked.values()) > KEPT_LOGITS:
            run.masked.popitem(last=False)
    elif progress is not None:
        progress(1.0)
    return found


def _logits(outputs: Outputs) -> Tensor:
    assert outputs.logits is not None
    return outputs.logits


def _collected(
    run: ForwardPass,
    masks: Tensor,
    kind: str,
    read: Callable[[Outputs], Tensor],
    progress: Callable[[float], None] | None,
) -> Tensor:
    """(B, ...) what is read of the outputs with parts replaced."""
    found: Tensor | None = None
    done = 0
    for rows, outputs in masked_outputs(run, masks, kind):
        part = read(outputs).detach()
        if found is None:
            found = part.new_zeros((len(masks), *part.shape[1:]))
        found[rows] = part
        done += len(rows)
        if progress is not None:
            progress(done / len(masks))
    assert found is not None  # there is a row
    return found


def masked_outputs(
    run: ForwardPass, masks: Tensor, replacement: str = "default"
) -> Iterator[tuple[list[int], Outputs]]:
    """Rows of masks, a batch at a time, and what the model gives with their tokens or patches replaced.

    Args:
        masks, replacement: as in ``target_values``.
    Raises:
        ValueError, UnsupportedModelError: as ``target_values``.
    """
    return _removed(run, masks) if replacement == "remove" else _replaced(run, masks, replacement)


def _replaced(run: ForwardPass, masks: Tensor, kind: str) -> Iterator[tuple[list[int], Outputs]]:
    entry, blank = entry_of(run), blank_of(run, kind)
    for rows in _batches(range(len(masks)), run):
        with torch.no_grad():
            outputs = outputs_at(run, torch.where(covered(run, masks[rows]), blank, entry))
        yield rows, outputs


def _removed(run: ForwardPass, masks: Tensor) -> Iterator[tuple[list[int], Outputs]]:
    """With tokens deleted; rows that leave special tokens in the same places share a batch."""
    kept = kept_positions(run.inputs)
    alike: dict[tuple[int, ...], list[int]] = {}
    for row, stays in enumerate(_staying(run, masks)):
        after = stays.cumsum(0) - 1  # place of each position that stays
        alike.setdefault(tuple(after[kept[stays[kept]]].tolist()), []).append(row)
    for places, found in alike.items():
        for rows in _batches(found, run):
            tensors = shortened_inputs(run, masks[rows])
            yield rows, plain_outputs(run.model, tensors, torch.tensor(places, dtype=torch.long))


def _batches(rows: Sequence[int], run: ForwardPass) -> Iterator[list[int]]:
    size = batch_items(run.model, run.inputs)
    for first in range(0, len(rows), size):
        yield list(rows[first : first + size])


def batch_items(model: LoadedModel, inputs: Inputs, tokens: int | None = None) -> int:
    """Items of a batch of that many positions (None: ``BATCH_TOKENS``); 1 for a classifier that takes no batch.

    GPT-2 without a padding token finds its last word by padding, and takes none.
    """
    config = getattr(model.module, "config", None)
    pools_by_padding = model.is_causal and model.task == "sequence-classification"
    if pools_by_padding and getattr(config, "pad_token_id", None) is None:
        return 1
    return max(
        1, (tokens or BATCH_TOKENS) // max(1, position_count(inputs) + len(inputs.target_tokens or ()))
    )


def _reads_a_position(run: ForwardPass, target: Target) -> bool:
    return target.kind == "token_log_probability" and not run.model.is_encoder_decoder


def _checked(run: ForwardPass, masks: Tensor) -> Tensor:
    check_ndim(masks, 2, "target_values: masks")
    if masks.dtype != torch.bool:
        raise TypeError(
            f"target_values: masks must be boolean, True = replaced, but is {masks.dtype}; compare it to a threshold."
        )
    count = len(kept_positions(run.inputs))
    if masks.shape[1] != count:
        raise ValueError(
            f"target_values: masks must be (B, {count}), one column a token or patch that is not special, but is "
            f"{tuple(masks.shape)}; pass one row for each input to run."
        )
    return masks.cpu()


# Where a model takes its input in --------------------------------------------------------------------------------


def entry_of(run: ForwardPass) -> Tensor:
    """(1, N, M) word embeddings of a text, before positions are added, or (1, C, H, W) pixels; without a graph."""
    found = run.embedded if run.inputs.grid is None else run.inputs.tensors["pixel_values"]
    return found.detach().to(run.model.device)


def outputs_at(run: ForwardPass, entries: Tensor) -> Outputs:
    """What the model gives for other word embeddings (B, N, M) or pixels (B, C, H, W); all else stays as it is.

    In an encoder-decoder the encoder's embeddings alone are other ones: what the decoder reads stays.
    """
    if run.inputs.grid is not None:
        others = {name: tensor for name, tensor in run.inputs.tensors.items() if name != "pixel_values"}
        tensors = repeated(others, len(entries)) | {"pixel_values": entries}
        with quick_products():
            return graph_outputs(run.model, tensors, run.outputs.kept)
    with _replaced_embeddings(run.model.module, entries), quick_products():
        return graph_outputs(run.model, repeated(run.inputs.tensors, len(entries)), run.outputs.kept)


def repeated(tensors: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """The tensors of one item as those of a batch; a setting that is no batch (a single number) stays."""
    return {
        name: tensor.repeat(count, *[1] * (tensor.ndim - 1)) if tensor.ndim else tensor
        for name, tensor in tensors.items()
    }


_given: ContextVar[list[Tensor] | None] = ContextVar("analysis_evidence_given_embeddings", default=None)


@contextmanager
def _replaced_embeddings(module: nn.Module, entries: Tensor) -> Iterator[None]:
    """Inside the block the input embeddings give out ``entries`` (B, N, M), once, in this context alone.

    Their first call is the encoder's in an encoder-decoder whose stacks share them.
    """
    waiting = [entries]
    token = _given.set(waiting)

    def replace(_: nn.Module, __: Any, output: Tensor) -> Tensor | None:
        return waiting.pop().to(output.dtype) if waiting and _given.get() is waiting else None

    embeddings = input_embeddings(module)
    assert embeddings is not None  # the pass saw them
    handle = embeddings.register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()
        _given.reset(token)


def covered(run: ForwardPass, masks: Tensor) -> Tensor:
    """(B, n) over tokens or patches → (B, N, 1) or (B, 1, H, W): which entries belong to a replaced one."""
    grid = run.inputs.grid
    if grid is not None:
        height, width = run.inputs.tensors["pixel_values"].shape[2:]
        return patch_pixels(grid, masks, height, width).to(run.model.device)
    where = torch.zeros(len(masks), position_count(run.inputs), 1, dtype=torch.bool)
    where[:, kept_positions(run.inputs), 0] = masks
    return where.to(run.model.device)


# What comes instead ----------------------------------------------------------------------------------------------


def resolved(run: ForwardPass, kind: str, name: str, *, removal: bool = True) -> str:
    """What "default" stands for with this input; any other kind as it is.

    Args:
        name: function and argument, for the message.
        removal: whether "remove" makes sense there.
    Raises:
        ValueError: if there is no such kind for this input.
    """
    text = run.inputs.grid is None
    if kind == "default":
        return "mask" if text and stand_in_token(run.model, "mask") is not None else "mean"
    known = (*TEXT_FILLS, *(("remove",) if removal else ())) if text else PICTURE_FILLS
    if kind not in known:
        raise ValueError(
            f"{name} must be one of default, {', '.join(known)} for this input but is {kind!r}; choose one of them."
        )
    return kind


def blank_of(run: ForwardPass, kind: str) -> Tensor:
    """The input with every token or patch replaced, of the shape of ``entry_of``; special tokens stay.

    Args:
        kind: one of ``TEXT_FILLS`` or ``PICTURE_FILLS``, or "default".
    Raises:
        ValueError, UnsupportedModelError: as ``target_values``.
    """
    kind = resolved(run, kind, "blank_of: kind", removal=False)
    entry = entry_of(run)
    if run.inputs.grid is not None:
        return _picture_fill(run, kind).to(entry).expand_as(entry).contiguous()
    everything = torch.ones(1, len(kept_positions(run.inputs)), dtype=torch.bool)
    return torch.where(covered(run, everything), _text_fill(run, kind).to(entry), entry)


def replacement_note(run: ForwardPass, kind: str) -> str:
    """In words, what stands in place of what was left out.

    Raises:
        ValueError, UnsupportedModelError: as ``target_values``.
    """
    kind = resolved(run, kind, "replacement_note: kind")
    if kind == "remove":
        return "Tokens were deleted and the model ran on the shorter text."
    return f"{'Tokens' if run.inputs.grid is None else 'Patches'} were replaced by {fill_words(run, kind)}."


def fill_words(run: ForwardPass, kind: str) -> str:
    """A fill in words, such as "[MASK]" or "the picture's mean colour".

    Raises:
        ValueError, UnsupportedModelError: as ``target_values``.
    """
    kind = resolved(run, kind, "fill_words: kind", removal=False)
    if kind in ("mask", "pad"):
        return _needed_token(run.model, kind)[1]
    return FILL_WORDS["text" if run.inputs.grid is None else "picture", kind]


# Text


def _text_fill(run: ForwardPass, kind: str) -> Tensor:
    """(M,) word embedding that stands in place of a token."""
    if kind == "zero":
        return torch.zeros(run.embedded.shape[-1])
    embeddings = input_embeddings(run.model.module)
    assert embeddings is not None  # the pass saw them
    with torch.no_grad():
        if kind in ("mask", "pad"):
            token, _ = _needed_token(run.model, kind)
            found: Tensor = embeddings(torch.tensor([[token]], device=run.model.device))[0, 0]
            return found
        if not isinstance(embeddings, nn.Embedding):
            raise UnsupportedModelError(
                f"blank_of: {run.model.title} has no table of word embeddings to take the mean of; choose 'zero' or "
                "'remove'."
            )
        return _mean_embedding(embeddings)


def _mean_embedding(embeddings: nn.Embedding) -> Tensor:
    """(M,) over the whole vocabulary, as the module gives it out (some scale what is in their table)."""
    weight = embeddings.weight
    total = torch.zeros(weight.shape[1], dtype=torch.promote_types(weight.dtype, torch.float32))
    for ids in torch.split(
        torch.arange(len(weight), device=weight.device), 8192
    ):  # some vocabularies are huge
        total = total + embeddings(ids[None])[0].to(total.dtype).sum(0).cpu()
    return total / len(weight)


def stand_in_token(model: LoadedModel, *kinds: str) -> tuple[int, str] | None:
    """The first of these special tokens that a model has: its index and its name as the tokenizer writes it."""
    config = getattr(model.module, "config", None)
    embeddings = input_embeddings(model.module)
    vocabulary = embeddings.num_embeddings if isinstance(embeddings, nn.Embedding) else None
    for kind in kinds:
        number = getattr(model.processor, f"{kind}_token_id", None)
        if number is None:
            number = getattr(config, f"{kind}_token_id", None)
        if isinstance(number, int) and number >= 0 and (vocabulary is None or number < vocabulary):
            written: Any = getattr(model.processor, f"{kind}_token", None)
            return number, str(written or f"the {kind} token")
    return None


def _needed_token(model: LoadedModel, kind: str) -> tuple[int, str]:
    found = stand_in_token(model, kind)
    if found is None:
        raise UnsupportedModelError(
            f"blank_of: {model.title} has no {kind} token to put in place of a token; choose replacement='mean'."
        )
    return found


def _staying(run: ForwardPass, masks: Tensor) -> Tensor:
    """(B, N) bool: positions that stay when the masked ones are deleted."""
    stays = torch.ones(len(masks), position_count(run.inputs), dtype=torch.bool)
    stays[:, kept_positions(run.inputs)] = ~masks
    return stays


def shortened_inputs(run: ForwardPass, masks: Tensor) -> dict[str, Tensor]:
    """Keyword arguments of the model's forward with the masked tokens deleted; position ids count what is left.

    Args:
        masks: (B, n) bool over the kept positions, equally many True in every row.
    Raises:
        ValueError: if rows delete different numbers of tokens, or everything.
    """
    stays, tensors = _staying(run, masks), repeated(run.inputs.tensors, len(masks))
    lengths = stays.sum(1)
    if len(masks) and int(lengths.min()) != int(lengths.max()):
        raise ValueError(
            "shortened_inputs: masks must delete equally many tokens in every row but delete "
            f"{int(masks.sum(1).min())} to {int(masks.sum(1).max())}; pass rows of one number, or use target_values."
        )
    if len(masks) and not int(lengths[0]):
        raise ValueError(
            "shortened_inputs: masks must leave a token under 'remove' but delete all and the model has no special "
            "tokens; choose 'default'."
        )
    count = stays.shape[1]
    shorter: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.startswith("decoder_") or tensor.ndim < 2 or tensor.shape[1] != count:
            shorter[name] = tensor
        elif name == "position_ids":
            shorter[name] = tensor[:, : int(lengths[0]) if len(masks) else count]
        else:
            left = tensor[stays.to(tensor.device)]
            shorter[name] = left.reshape(len(masks), -1, *tensor.shape[2:])
    return shorter


# Pictures


def patch_pixels(grid: PatchGrid, masks: Tensor, height: int, width: int) -> Tensor:
    """(B, n) over patches → (B, 1, height, width) over pixels; False where no patch covers a pixel."""
    patches = masks.reshape(len(masks), 1, grid.rows, grid.columns)
    pixels = patches.repeat_interleave(grid.patch, 2).repeat_interleave(grid.patch, 3)
    pixels = pixels[..., :height, :width]
    missing = (0, width - pixels.shape[3], 0, height - pixels.shape[2])
    return nn.functional.pad(pixels, missing, value=False)


def _picture_fill(run: ForwardPass, kind: str) -> Tensor:
    """(1, C, 1, 1) colour or (1, C, H, W) picture in the model's units."""
    assert run.inputs.grid is not None
    grid, pixels = run.inputs.grid, run.inputs.tensors["pixel_values"]
    if kind == "mean":
        return pixels[..., : grid.height, : grid.width].mean((2, 3), keepdim=True)
    if kind == "zero":
        return torch.zeros_like(pixels[..., :1, :1])
    if kind == "blurred":
        return _blurred(pixels, float(grid.patch))
    colour = np.full((1, 1, 3), 0 if kind == "black" else 255, dtype=np.uint8)
    values = resizing.normalised(colour, preparation_of(run.model)[0])
    return torch.from_numpy(values)[None].to(pixels)


def _blurred(pixels: Tensor, deviation: float) -> Tensor:
    """The picture under a Gaussian; its edge pixels go on beyond it."""
    reach = int(2 * deviation)
    offsets = torch.arange(-reach, reach + 1, dtype=pixels.dtype, device=pixels.device)
    kernel = (-0.5 * (offsets / deviation) ** 2).exp()
    kernel = kernel / kernel.sum()
    channels = pixels.shape[1]
    padded = nn.functional.pad(pixels, (reach, reach, reach, reach), mode="replicate")
    across = nn.functional.conv2d(padded, kernel.expand(channels, 1, 1, -1), groups=channels)
    return nn.functional.conv2d(across, kernel[:, None].expand(channels, 1, -1, 1), groups=channels)
