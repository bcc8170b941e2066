"""What a prediction loses when a part of the input is taken away: leave one out, and the inputs that curves run.

f(x) − f(x without i) is the oldest evidence there is: Zeiler & Fergus 2014, "Visualizing and Understanding
Convolutional Networks", section 4.2, for pictures; Li, Monroe & Jurafsky 2016, "Understanding Neural Networks through
Representation Erasure", section 3, for text. Nothing is differentiated, so it works on any model; but an input with a
hole is one that the model may never have seen, and two parts that say the same hide each other.

``masked_inputs`` is the one place where tokens or patches are replaced; ``target_values`` runs what it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from analysis import resizing
from analysis.evidence.explanation import Explanation, explanation_of, kept_positions, position_count
from analysis.evidence.passes import ForwardPass, input_embeddings, plain_outputs
from analysis.evidence.targets import Target
from analysis.inputs import PatchGrid, preparation_of
from analysis.models import LoadedModel
from analysis.words import word_groups
from attn_core.checks import check_ndim
from attn_core.errors import UnsupportedModelError

Replacement = Literal["default", "remove", "mean", "zero", "black", "white", "blurred"]
"""What stands in place of a token or patch; the first two are for text, all but "remove" for pictures."""

FILLS = ("mean", "zero", "black", "white", "blurred")
"""What a patch may be replaced by."""

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
        replacement: as in ``masked_inputs``.
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
        details={"value": float(values[0]), "replacement": replacement},
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
        replacement: as in ``masked_inputs``.
        progress: told how much is done, 0 to 1; what it raises comes out.
    Raises:
        ValueError: as ``masked_inputs``; if the target reads a position that "remove" moves; or if its number is not
            finite for one of the inputs.
        UnsupportedModelError: as ``masked_inputs``.
    """
    masks = _checked(run, masks, "target_values")
    if replacement == "remove" and _reads_a_position(run, target) and bool(masks.any()):
        raise ValueError(
            f"target_values: replacement must not be 'remove' for {target.label!r}, which reads one position of the "
            "text; choose 'default'."
        )
    size = batch_size(run)
    values = torch.zeros(len(masks), dtype=torch.promote_types(run.model.dtype, torch.float32))
    done = 0
    for rows, kept in _batches(run, masks, replacement):
        for first in range(0, len(rows), size):
            chunk = rows[first : first + size]
            tensors = masked_inputs(run, masks[chunk], replacement=replacement)
            found = target.value(plain_outputs(run.model, tensors, kept))
            values[chunk] = found.detach().to(values)
            done += len(chunk)
            if progress is not None:
                progress(done / len(masks))
    if not bool(values.isfinite().all()):
        row = int((~values.isfinite()).nonzero()[0, 0])
        raise ValueError(
            f"target_values: {target.label!r} is {float(values[row])} with {int(masks[row].sum())} of "
            f"{masks.shape[1]} tokens or patches replaced; choose another target or replacement."
        )
    return values


def batch_size(run: ForwardPass, tokens: int = BATCH_TOKENS) -> int:
    """Items of a batch of that many positions; 1 for a classifier that takes no batch (GPT-2 without padding)."""
    config = getattr(run.model.module, "config", None)
    pools_by_padding = run.model.is_causal and run.model.task == "sequence-classification"
    if pools_by_padding and getattr(config, "pad_token_id", None) is None:
        return 1
    return max(1, tokens // max(1, position_count(run.inputs) + len(run.inputs.target_tokens or ())))


def _reads_a_position(run: ForwardPass, target: Target) -> bool:
    return target.kind == "token_log_probability" and not run.model.is_encoder_decoder


def _batches(run: ForwardPass, masks: Tensor, replacement: Replacement) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of masks that may share a batch, and the places that are no special tokens in what they give."""
    kept = kept_positions(run.inputs)
    if replacement != "remove":
        yield torch.arange(len(masks)), kept
        return
    alike: dict[tuple[int, ...], list[int]] = {}
    for row, stays in enumerate(_staying(run, masks)):
        after = stays.cumsum(0) - 1  # place of each position that stays
        alike.setdefault(tuple(after[kept[stays[kept]]].tolist()), []).append(row)
    for places, rows in alike.items():
        yield torch.tensor(rows), torch.tensor(places, dtype=torch.long)


# Inputs with parts replaced --------------------------------------------------------------------------------------


def masked_inputs(
    run: ForwardPass, masks: Tensor, *, replacement: Replacement = "default"
) -> Mapping[str, Tensor]:
    """Keyword arguments of the model's forward for a batch of inputs with some tokens or patches replaced.

    Text: "default" puts the mask token there if the tokenizer has one, else the padding or the unknown token, and
    leaves the attention mask as it is; "remove" deletes the tokens, and what is after them moves up.
    Pictures: "default" and "mean" put the picture's mean colour there, "zero" 0 in the model's own units (the mean
    colour of its training pictures), "black" and "white" those colours, "blurred" the picture under a Gaussian whose
    standard deviation is the side of a patch.

    Args:
        masks: (B, n) bool over the kept positions, True = replaced.
        replacement: what comes instead.
    Returns:
        tensors (B, ...) by name; nothing of ``run`` is written to.
    Raises:
        TypeError: if ``masks`` is not boolean.
        ValueError: if ``masks`` does not fit the input, ``replacement`` is not one of this kind of input, or "remove"
            would delete everything or different numbers of tokens in one batch.
        UnsupportedModelError: if the model has none of the three tokens.
    """
    masks = _checked(run, masks, "masked_inputs")
    _check_replacement(run, replacement)
    tensors = repeated(run.inputs.tensors, len(masks))
    grid = run.inputs.grid
    if grid is not None:
        pixels = tensors["pixel_values"]
        fill = picture_fill(run, "mean" if replacement == "default" else replacement)
        hidden = patch_pixels(grid, masks, pixels.shape[2], pixels.shape[3]).to(pixels.device)
        return tensors | {"pixel_values": torch.where(hidden, fill, pixels)}
    if replacement == "remove":
        return _shortened(run, tensors, masks)
    token, _ = _stand_in(run.model)
    ids = tensors["input_ids"]
    where = torch.zeros(len(masks), position_count(run.inputs), dtype=torch.bool)
    where[:, kept_positions(run.inputs)] = masks
    return tensors | {"input_ids": ids.masked_fill(where.to(ids.device), token)}


def repeated(tensors: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """The tensors of one item as those of a batch; a setting that is no batch (a single number) stays."""
    return {
        name: tensor.repeat(count, *[1] * (tensor.ndim - 1)) if tensor.ndim else tensor
        for name, tensor in tensors.items()
    }


def replacement_note(run: ForwardPass, replacement: Replacement) -> str:
    """In words, what stands in place of what was left out.

    Raises:
        UnsupportedModelError: as ``masked_inputs``.
    """
    if replacement == "remove":
        return "Tokens were deleted and the model ran on the shorter text."
    if run.inputs.grid is None:
        return f"Tokens were replaced by {_stand_in(run.model)[1]}."
    return f"Patches were replaced by {FILL_WORDS['mean' if replacement == 'default' else replacement]}."


FILL_WORDS = MappingProxyType(
    {
        "mean": "the picture's mean colour",
        "zero": "0 in the model's units, the mean colour of its training pictures",
        "black": "black",
        "white": "white",
        "blurred": "the blurred picture",
    }
)
"""What each of ``FILLS`` is."""


def _checked(run: ForwardPass, masks: Tensor, caller: str) -> Tensor:
    check_ndim(masks, 2, f"{caller}: masks")
    if masks.dtype != torch.bool:
        raise TypeError(
            f"{caller}: masks must be boolean, True = replaced, but is {masks.dtype}; compare it to a threshold."
        )
    count = len(kept_positions(run.inputs))
    if masks.shape[1] != count:
        raise ValueError(
            f"{caller}: masks must be (B, {count}), one column for each token or patch that is no special token, but "
            f"is {tuple(masks.shape)}."
        )
    return masks.cpu()


def _check_replacement(run: ForwardPass, replacement: str) -> None:
    known = ("default", "remove") if run.inputs.grid is None else ("default", *FILLS)
    if replacement not in known:
        raise ValueError(
            f"masked_inputs: replacement must be one of {', '.join(known)} for this input but is {replacement!r}."
        )


# Text


def _staying(run: ForwardPass, masks: Tensor) -> Tensor:
    """(B, N) bool: positions that stay when the masked ones are deleted."""
    stays = torch.ones(len(masks), position_count(run.inputs), dtype=torch.bool)
    stays[:, kept_positions(run.inputs)] = ~masks
    return stays


def _shortened(run: ForwardPass, tensors: Mapping[str, Tensor], masks: Tensor) -> dict[str, Tensor]:
    """The tensors without the masked positions; position ids count what is left."""
    stays = _staying(run, masks)
    lengths = stays.sum(1)
    if len(masks) and int(lengths.min()) != int(lengths.max()):
        raise ValueError(
            "masked_inputs: masks must replace equally many tokens in every row under 'remove' but replace "
            f"{int(masks.sum(1).min())} to {int(masks.sum(1).max())}; pass rows of one number, or use target_values."
        )
    if len(masks) and not int(lengths[0]):
        raise ValueError(
            "masked_inputs: masks must leave a token under 'remove' but delete all and the model has no special "
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


def stand_in_token(model: LoadedModel, *kinds: Literal["mask", "pad", "unk"]) -> tuple[int, str] | None:
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


def _stand_in(model: LoadedModel) -> tuple[int, str]:
    if model.is_causal and model.task == "sequence-classification":  # reads the last token that is no padding
        found = stand_in_token(model, "mask", "unk", "pad")
    else:
        found = stand_in_token(model, "mask", "pad", "unk")
    if found is None:
        raise UnsupportedModelError(
            f"masked_inputs: {model.title} has no mask, padding or unknown token to put in place of a token; choose "
            "replacement='remove'."
        )
    return found


# Pictures


def patch_pixels(grid: PatchGrid, masks: Tensor, height: int, width: int) -> Tensor:
    """(B, n) over patches → (B, 1, height, width) over pixels; False where no patch covers a pixel."""
    patches = masks.reshape(len(masks), 1, grid.rows, grid.columns)
    pixels = patches.repeat_interleave(grid.patch, 2).repeat_interleave(grid.patch, 3)
    pixels = pixels[..., :height, :width]
    missing = (0, width - pixels.shape[3], 0, height - pixels.shape[2])
    return nn.functional.pad(pixels, missing, value=False)


def picture_fill(run: ForwardPass, kind: str) -> Tensor:
    """(1, C, 1, 1) colour or (1, C, H, W) picture in the model's units: one of ``FILLS``.

    Raises:
        ValueError: if there is no such kind, or the input is no picture.
    """
    if run.inputs.grid is None or kind not in FILLS:
        raise ValueError(
            f"picture_fill: kind must be one of {', '.join(FILLS)} and the input a picture, but kind is {kind!r} and "
            f"the input is {'text' if run.inputs.grid is None else 'a picture'}."
        )
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
