"""Windowed models (Swin and its kin): where windows lie is seen in the call, and nothing of it stays on the model."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from analysis.hf import windows
from analysis.hf.attention import capture
from analysis.images import Picture
from analysis.inputs import MOST_PATCHES_ASKED, PatchGrid, encode_image
from analysis.models import LoadedModel, load_model
from analysis.rollout import rollout
from analysis.trace import parity, trace
from attn_core import UnsupportedModelError, WindowedMap
from tests.capture_helpers import assert_same_state, captured, state_of
from tests.oracles.windows import windows_of
from tests.tiny_models import BY_NAME

NAMES = ("Swin", "Swin V2", "Donut Swin")
every_kind = pytest.mark.parametrize("name", NAMES)


def pixels(height: int, width: int, *, seed: int = 0) -> torch.Tensor:
    return torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(seed))


def picture(height: int, width: int) -> Picture:
    values = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Picture(pixels=values, name="noise", sha256="", notes=())


def sizes(module: nn.Module) -> list[tuple[int, int]]:
    return [(layer.window_size, layer.shift_size) for layer in windows.windowed_layers(module)]


@pytest.fixture(scope="module")
def swin(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("swin")
    BY_NAME["Swin"].build().save_pretrained(folder)
    return load_model(folder, device="cpu")


# The model ---------------------------------------------------------------------------------------------------------


@every_kind
def test_a_picture_leaves_the_model_as_it_was_for_the_next_one(name: str) -> None:
    """4 × 6 patches in the second stage make the library drop that layer's shift for good."""
    architecture = BY_NAME[name]
    module = architecture.build()
    before = sizes(module)
    large = {"pixel_values": pixels(36, 44)}
    expected, output = captured(module, large)
    captured(module, {"pixel_values": pixels(30, 46)})
    assert sizes(module) == before
    found, again = captured(module, large)
    assert found.grids == expected.grids
    assert torch.equal(again.last_hidden_state, output.last_hidden_state)
    for one, other in zip(found.encoder, expected.encoder, strict=True):
        assert torch.equal(one.weights(), other.weights())


@every_kind
def test_nothing_stays_on_the_model_after_an_exception_in_a_layer(name: str) -> None:
    module = BY_NAME[name].build()
    before, hooks = sizes(module), state_of(module)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("in the last layer")

    handle = windows.windowed_layers(module)[-1].register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError), torch.no_grad(), capture(module):
        module(pixel_values=pixels(30, 46))
    handle.remove()
    assert sizes(module) == before
    assert_same_state(hooks, state_of(module))


def test_another_thread_on_the_model_is_not_recorded_and_not_changed() -> None:
    """Hooks act for their own context alone, also while plain passes run through the same module."""
    module = BY_NAME["Donut Swin"].build()
    tensors = {"pixel_values": pixels(36, 44)}
    with torch.no_grad():
        expected = module(**tensors)
    alone, _ = captured(module, tensors)
    wrong: list[str] = []

    def plain() -> None:
        for _ in range(8):
            with torch.no_grad():
                output = module(**tensors)
            if output.attentions is not None or not torch.equal(
                output.last_hidden_state, expected.last_hidden_state
            ):
                wrong.append("a plain pass was changed")

    def recorded() -> None:
        for _ in range(8):
            trace, _ = captured(module, tensors)
            same = len(trace.encoder) == len(alone.encoder) and all(
                torch.equal(one.weights(), other.weights())
                for one, other in zip(trace.encoder, alone.encoder, strict=True)
            )
            if not same:
                wrong.append("a capture saw another pass")

    threads = [threading.Thread(target=task) for task in (plain, recorded, recorded, plain)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert sizes(module) == [(4, 0), (4, 2), (4, 0), (4, 2)]


def test_parity_leaves_the_model_as_it_was(swin: LoadedModel) -> None:
    before = sizes(swin.module)
    inputs = encode_image(swin, picture(32, 48), side=32)
    assert max(parity(swin, inputs).values()) < 1e-5
    assert sizes(swin.module) == before


@pytest.mark.parametrize("name", ["Swin", "Donut Swin"])
def test_a_picture_smaller_than_a_window_is_refused_before_the_library_fails(name: str) -> None:
    module = BY_NAME[name].build()
    with pytest.raises(
        UnsupportedModelError, match=r"leaves 3 × 4 patches in a layer whose windows are 4 × 4"
    ):
        captured(module, {"pixel_values": pixels(20, 28)})
    assert sizes(module) == [(4, 0), (4, 2), (4, 0), (4, 2)]
    trace, _ = captured(module, {"pixel_values": pixels(32, 32)})
    assert trace.grids == ((8, 8), (8, 8), (4, 4), (4, 4))


def test_windows_larger_than_the_picture_of_swin_v2_hold_padding() -> None:
    trace, _ = captured(BY_NAME["Swin V2"].build(), {"pixel_values": pixels(20, 28)})
    assert trace.grids == ((5, 7), (5, 7), (3, 4), (3, 4))
    last = trace.item(0).encoder[-1]
    assert isinstance(last, WindowedMap)
    assert 0 < float(last.kept(None).min()) < 1


# What is known of the windows -------------------------------------------------------------------------------------


@every_kind
def test_notes_tell_windows_and_shifts(name: str) -> None:
    trace, _ = captured(BY_NAME[name].build(), {"pixel_values": pixels(36, 44)})
    shifted = "layer 1" if name == "Swin V2" else "layers 1, 3"
    assert trace.notes[-1] == (
        f"Attention stays inside windows of 4 × 4 patches (shifted by 2 in {shifted}): "
        "weights outside of a patch's window are zero."
    )
    assert trace.fallback == (name != "Swin")


def test_a_cut_is_believed_only_when_the_windows_hold_its_tokens() -> None:
    layer = windows.windowed_layers(BY_NAME["Swin"].build())[1]
    tokens = torch.randn(2, 99, 16)
    normed = layer.layernorm_before(tokens)
    cut = torch.zeros(2, 9, 16, 16)
    for window, places in enumerate(windows_of((9, 11), 4, 2)):
        for place, held in enumerate(places):
            if held is not None:
                cut[:, window, place] = normed[:, held[0] * 11 + held[1]]
    cut = cut.reshape(18, 16, 16)

    def proved(
        given: torch.Tensor, grid: tuple[int, int] = (9, 11), *, window: int = 4, shift: int = 2
    ) -> bool:
        return windows._proved(layer, grid, tokens, given, window=window, shift=shift)

    with torch.no_grad():
        assert proved(cut)
        assert not proved(cut, shift=1)
        assert not proved(cut, shift=0)
        assert not proved(cut, (11, 9))
        assert not proved(cut, window=2, shift=1)
        assert not proved(cut[:9])
        assert not proved(cut.flip(0))
        assert not proved(cut + 1e-3)  # padding is not zero


def test_windows_that_are_not_known_stay_one_map_each_and_are_told(
    swin: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "_proved", lambda *_given, **_named: False)
    found = trace(swin, encode_image(swin, picture(36, 44)))
    assert found.grids == (None,) * 4
    assert [layer.batch for layer in found.encoder] == [4, 4, 1, 1]
    assert "where these lie in the picture could not be seen" in found.notes[-1]


def test_a_model_whose_windows_nobody_watches_is_told_too(
    swin: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "windowed_layers", lambda _module: [])
    found = trace(swin, encode_image(swin, picture(36, 44)))
    assert found.grids == (None,) * 4
    assert "each layer holds one map a part" in found.notes[-1]


# Pictures ----------------------------------------------------------------------------------------------------------


def test_each_layer_of_a_trace_knows_its_patches(swin: LoadedModel) -> None:
    inputs = encode_image(swin, picture(36, 44), side=36)
    found = trace(swin, inputs)
    fine, coarse = PatchGrid(9, 11, 4, 36, 44, 0), PatchGrid(5, 6, 8, 40, 48, 0)
    assert inputs.grid == fine
    assert found.grids == (fine, fine, coarse, coarse)
    assert [layer.shape for layer in found.encoder] == [(1, 2, 99, 99)] * 2 + [(1, 4, 30, 30)] * 2


def test_the_grids_of_an_ordinary_vision_transformer_are_the_picture_s(tmp_path: Path) -> None:
    BY_NAME["DINOv2"].build().save_pretrained(tmp_path)
    model = load_model(tmp_path, device="cpu")
    inputs = encode_image(model, picture(24, 12), side=12)
    assert trace(model, inputs).grids == (inputs.grid,) * 3


def test_rollout_of_merged_patches_is_refused(swin: LoadedModel) -> None:
    found = trace(swin, encode_image(swin, picture(36, 44)))
    with pytest.raises(ValueError, match=r"square maps of one size but layer 2 has 16 queries"):
        rollout(found.encoder)
    of_a_stage = rollout(found.encoder[:2])
    assert_close(of_a_stage.sum(-1), torch.ones(64))


def test_pixels_that_the_model_pads_are_in_the_grid_and_in_the_picture(tmp_path: Path) -> None:
    BY_NAME["Swin"].build(image_size=30).save_pretrained(tmp_path)
    model = load_model(tmp_path, device="cpu")
    inputs = encode_image(model, picture(30, 30))
    assert inputs.grid == PatchGrid(8, 8, 4, 32, 32, 0)
    assert inputs.picture is not None
    assert inputs.picture.shape == (32, 32, 3)
    assert np.array_equal(inputs.picture[:30, :30], picture(30, 30).pixels)
    assert set(inputs.picture[30:].ravel()) == {128}  # the mean of a model without an image processor
    assert any("adds 2 columns and 2 rows of its mean colour" in note for note in inputs.notes)
    assert trace(model, inputs).grids[0] == inputs.grid


def test_a_wide_picture_keeps_its_size_where_attention_stays_in_windows(swin: LoadedModel) -> None:
    """Shrunk to fewer patches, the last stage of a wide picture would be smaller than a window."""
    inputs = encode_image(swin, picture(100, 300), side=400)
    assert inputs.grid is not None
    assert (inputs.grid.rows, inputs.grid.columns) == (100, 300)
    assert inputs.grid.rows * inputs.grid.columns > MOST_PATCHES_ASKED
