"""Large pictures: their own size, passes without the graph of all layers, and nothing of n × n on the way."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from analysis.catalogue import VIT_S14, is_installed
from analysis.evidence import passes
from analysis.evidence.blocks import Chain, block_names, chain_bytes, graph_bytes, small_inputs
from analysis.evidence.methods import explain
from analysis.evidence.passes import forward_pass, pass_bytes
from analysis.evidence.targets import class_logit, embedding_similarity, token_log_probability
from analysis.figure_data import PatchMaps
from analysis.images import Picture
from analysis.inputs import LONGEST_OWN_SIDE, MOST_PATCHES_ASKED, encode_image, encode_text, grid_at, own_side
from analysis.models import load_model
from analysis.rollout import rollout_row
from attn_core.budget import memory_budget
from attn_core.errors import MemoryBudgetError, UnsupportedModelError
from dashboard import long_runs
from dashboard.figures import PICTURE_PIXELS, patch_map_payload, unpack
from dashboard.selection import default_selection, from_query, to_query
from tests.input_helpers import BERT, GPT2, byte_level, loaded, word_piece
from tests.test_app import let_nothing_start, opened, shown
from tests.tiny_models import BY_NAME

TEXT = "The film is not bad, surprisingly, and the house is old."


def picture(height, width, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Picture(pixels=pixels, name="noise", sha256=f"{seed}", notes=())


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    """A ViT of patches of 4 pixels, narrow enough for thousands of them."""
    return loaded(
        tmp_path_factory.mktemp("vit"), "ViTForImageClassification", "ViTConfig", None, hidden_size=8,
        num_hidden_layers=3, num_attention_heads=2, intermediate_size=12, image_size=32, patch_size=4, num_labels=3,
    )  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory, vit):
    """One model a way of building a block, and the target that it can be asked for."""
    make = tmp_path_factory.mktemp
    small = {"vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 40}
    found = {
        "vit": (vit, class_logit(1)),
        "gpt2": (loaded(make("gpt2"), "GPT2LMHeadModel", "GPT2Config", byte_level(), **GPT2), None),
        "llama": (
            loaded(
                make("llama"), "LlamaForCausalLM", "LlamaConfig", byte_level(), num_attention_heads=4,
                num_key_value_heads=2, **small,
            ),
            token_log_probability(3, 7),
        ),
        "modernbert": (
            loaded(
                make("modern"), "ModernBertForSequenceClassification", "ModernBertConfig", word_piece(),
                num_attention_heads=4, local_attention=8, pad_token_id=0, bos_token_id=2, eos_token_id=3,
                cls_token_id=2, sep_token_id=3, **small,
            ),
            class_logit(1),
        ),
    }  # fmt: skip
    folder = make("dinov2")
    BY_NAME["DINOv2"].build().save_pretrained(folder)
    dino = load_model(folder, device="cpu")
    other = torch.linspace(-1.0, 1.0, dino.module.config.hidden_size)
    found["dinov2"] = (dino, embedding_similarity(other, "another", pooling="first"))
    found["gpt2"] = (found["gpt2"][0], token_log_probability(3, 7))
    return found


def inputs_of(model):
    return (
        encode_image(model, picture(40, 56), side=None)
        if model.modality == "image"
        else encode_text(model, TEXT)
    )


# The picture's own size --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "size"),
    [
        ((100, 60), (100, 60)),  # whole patches: nothing is changed
        ((101, 63), (96, 60)),  # the shorter side in whole patches, the longer follows
        ((3, 9), (4, 12)),  # at least one patch
        ((4096, 1024), (2048, 512)),  # reduced to the longest side
        ((1030, 2048), (1024, 2032)),
    ],
)
def test_a_picture_at_its_own_size(vit, before, size):
    given = picture(*before)
    vit = vit if max(before) <= 200 else replace(vit, patch_size=16)
    grid = grid_at(vit, given, "own")
    assert (grid.height, grid.width) == pytest.approx(size, rel=0.08)
    assert max(grid.height, grid.width) <= max(LONGEST_OWN_SIDE, 12) + 160
    if max(before) <= 200:
        assert (grid.height, grid.width) == size
        inputs = encode_image(vit, given, side="own")
        assert inputs.grid == grid
        assert inputs.picture.shape == (*size, 3)
        assert inputs.tensors["interpolate_pos_encoding"]
        if size == before:
            assert np.array_equal(inputs.picture, given.pixels)
            assert inputs.notes == encode_image(vit, picture(32, 32), side=32).notes
    else:
        assert own_side(given) <= LONGEST_OWN_SIDE


def test_more_than_twenty_thousand_patches_are_taken_and_a_larger_picture_says_so(vit):
    grid = grid_at(replace(vit, patch_size=14), picture(2048, 2048), "own")
    assert (grid.rows, grid.columns) == (146, 146)
    assert grid.rows * grid.columns == 21_316 <= MOST_PATCHES_ASKED
    finer = grid_at(vit, picture(1024, 1024), "own")
    assert finer.rows * finer.columns <= MOST_PATCHES_ASKED
    inputs = encode_image(replace(vit, patch_size=256), picture(4096, 2048), side="own")
    assert "larger than 2,048 pixels" in inputs.notes[-2]
    with pytest.raises(ValueError, match="side must be pixels, 'own' or None but is 'owned'"):
        encode_image(vit, picture(32, 32), side="owned")
    with pytest.raises(ValueError, match="side must be None for"):
        grid_at(replace(vit, flexible_image_size=False), picture(32, 32), "own")


@pytest.mark.parametrize(
    ("value", "side"), [("own", "own"), ("2048", 2048), ("896", 896), ("2049", 224), ("all", 224)]
)
def test_links_name_a_size_up_to_the_largest_or_the_pictures_own(value, side):
    start = default_selection()
    reopened = from_query({"side": value}, start, "image")
    assert reopened.image.input.side == side
    assert (to_query(reopened, "image")["side"] == value) == (side != 224)
    assert bool(reopened.notes) == (side == 224)


# Passes without the whole graph ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vit", "dinov2", "gpt2", "llama", "modernbert"])
def test_gradients_block_by_block_are_those_of_the_whole_graph(models, name):
    model, target = models[name]
    inputs = inputs_of(model)
    whole, lean = (forward_pass(model, inputs, whole=kept) for kept in (True, False))
    assert whole.chain is None
    assert lean.chain is not None
    assert len(lean.chain.blocks) == len(model.attention_inputs)
    assert_close(lean.outputs.hidden, whole.outputs.hidden)
    assert lean.value(target) == pytest.approx(whole.value(target), rel=1e-6)
    ((kind, layers),) = whole.layers.items()
    for layer in range(len(layers)):  # before all layers are asked for, and after
        assert_close(lean.token_gradient(target, layer), whole.token_gradient(target, layer))
    found, expected = lean.gradients(target), whole.gradients(target)
    assert found.tokens == ()
    assert_close(found.embedded, expected.embedded)
    for one, other in zip(found.layers[kind], expected.layers[kind], strict=True):
        assert_close(one, other)
        assert float(one.abs().max()) > 0
    assert_close(lean.token_gradient(target, 0), whole.token_gradient(target, 0))
    for layer in lean.layers[kind][:-1]:
        assert layer.source.grad_fn is None, "a layer below the last has a graph"


def test_the_memory_budget_decides_and_every_method_agrees(models):
    model, target = models["vit"]
    inputs = encode_image(model, picture(48, 64), side=48)
    count = inputs.kept_tokens
    graph = graph_bytes(model, count)
    assert chain_bytes(model, count) < graph
    with memory_budget(graph // passes.GRAPH_BUDGETS + 1):
        whole = forward_pass(model, inputs)
        assert pass_bytes(model, count) == graph
    with memory_budget(max(graph // passes.GRAPH_BUDGETS - 1, 1)):
        lean = forward_pass(model, inputs)
        assert pass_bytes(model, count) == chain_bytes(model, count)
        with memory_budget(graph):
            for method in ("cdam", "gradcam", "relevance", "gradient_rollout", "attention_gradcam"):
                one, other = (explain(method, run, target).scores for run in (lean, whole))
                assert_close(one, other, rtol=1e-4, atol=1e-7)
            one, other = (
                explain("smooth_cdam", run, target, samples=2, layer=1).scores for run in (lean, whole)
            )
            assert_close(one, other, rtol=1e-4, atol=1e-7)
    assert (whole.chain, lean.chain is None) == (None, False)


def test_a_mean_rollout_is_the_same_above_and_below_the_budget(models):
    model, _ = models["vit"]
    run = forward_pass(model, encode_image(model, picture(48, 64), side=48))
    below = explain("rollout", run, row="mean").scores
    with memory_budget(run.layers["encoder"][0].map.queries ** 2):
        above = explain("rollout", run, row="mean").scores
        with pytest.raises(MemoryBudgetError):
            explain("rollout", run, row="mean", discard_ratio=0.5)
    assert_close(above, below, rtol=1e-4, atol=1e-7)


def test_few_targets_are_kept_where_many_would_not_fit(models):
    model, _ = models["vit"]
    run = forward_pass(model, encode_image(model, picture(48, 64), side=48), whole=False)
    run.gradients(class_logit(0))
    run.gradients(class_logit(1))
    assert len(run._kept) == 2
    with memory_budget(run.gradients(class_logit(0)).size):
        run.gradients(class_logit(2))
    assert list(run._kept) == [class_logit(2).key]


def test_the_gradient_of_the_last_block_is_taken_once_a_target(models, monkeypatch):
    model, target = models["vit"]
    run = forward_pass(model, encode_image(model, picture(48, 64), side=48), whole=False)
    taken = []
    plain = passes.ForwardPass._last_step
    monkeypatch.setattr(
        passes.ForwardPass, "_last_step", lambda self, *given: taken.append(given) or plain(self, *given)
    )
    for method in ("cdam", "gradcam", "relevance", "gradient_rollout"):
        explain(method, run, target)
    assert len(taken) == 1
    with memory_budget(1):
        explain("cdam", run, class_logit(0))
    assert list(run._top) == [class_logit(0).key]


def test_models_that_are_no_chain_keep_their_graph(tmp_path, models):
    bert = loaded(tmp_path, "BertForSequenceClassification", "BertConfig", word_piece(), **BERT)
    assert block_names(bert) == ()
    with memory_budget(1):
        assert forward_pass(bert, encode_text(bert, TEXT)).chain is None
    with pytest.raises(UnsupportedModelError, match=r"blocks of .* are not known"):
        forward_pass(bert, encode_text(bert, TEXT), whole=False)
    vit, target = models["vit"]
    inputs = encode_image(vit, picture(48, 64), side=48)
    head = vit.module.classifier
    middle = vit.module.get_submodule(block_names(vit)[0])
    seen = []
    hooks = [
        middle.register_forward_hook(lambda _, __, output: seen.append(output)),
        head.register_forward_pre_hook(lambda _, args: (args[0] + seen[-1][:, 0] ** 2,)),
    ]  # a head that also reads the first block, as those for dense prediction do
    try:
        with memory_budget(1):
            run = forward_pass(vit, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    assert run.chain is None
    assert float(run.gradients(target).embedded.abs().max()) > 0
    vit.module.requires_grad_(True)
    try:
        assert block_names(vit) == ()  # a graph would start at the parameters
    finally:
        vit.module.requires_grad_(False)


def test_a_block_that_reads_something_else_is_refused_and_leaves_no_hooks(models):
    vit, _ = models["vit"]

    def count():
        return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in vit.module.modules())

    before = count()
    second = vit.module.get_submodule(block_names(vit)[1])
    hook = second.register_forward_pre_hook(lambda _, args: (args[0] * 2.0, *args[1:]), prepend=True)
    try:
        with pytest.raises(UnsupportedModelError, match="does not read what the block before it wrote"):
            forward_pass(vit, encode_image(vit, picture(48, 64), side=48), whole=False)
    finally:
        hook.remove()
    assert count() == before
    assert Chain(("a",)).blocks == []


def test_the_small_part_is_of_the_same_model(models):
    for model, _ in models.values():
        inputs = inputs_of(model)
        small = small_inputs(model, inputs)
        run = forward_pass(model, small, whole=True)
        ((_, layers),) = run.layers.items()
        assert layers[0].map.queries <= 20
        assert inputs.tensors is not small.tensors


# Thousands of patches --------------------------------------------------------------------------------------------


class _Largest(TorchDispatchMode):
    """Most numbers that a tensor which any operation gives holds in memory (a view holds none of its own)."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, tuple | list) else (found,):
            if isinstance(tensor, torch.Tensor):
                held = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.numel = max(self.numel, held)
        return found


def test_no_method_of_one_pass_builds_all_pairs_of_four_thousand_patches(vit):
    inputs = encode_image(vit, picture(64, 64), side=256)
    count = inputs.kept_tokens
    assert count == 4097
    with memory_budget(2**20), _Largest() as largest:
        run = forward_pass(vit, inputs)
        assert run.chain is not None
        for method in (
            "cdam",
            "gradcam",
            "relevance",
            "gradient_rollout",
            "attention",
            "attention_gradcam",
            "rollout",
        ):
            scores = explain(method, run, class_logit(1)).scores
            assert bool(torch.isfinite(scores).all())
        rollout_row([layer.map for layer in run.layers["encoder"]], 0)
        explain("smooth_cdam", run, class_logit(1), samples=2)
    assert largest.numel < count**2 / 3, "an array of all pairs"
    many = replace(run, inputs=replace(inputs, grid=replace(inputs.grid, rows=96, columns=96)))
    for method in ("leave_one_out", "occlusion"):
        with pytest.raises(
            ValueError, match=rf"{method}: .* passes over 9,217 positions each would take days"
        ):
            explain(method, many, class_logit(1))


def test_gradients_down_to_the_pixels_are_refused_where_their_graph_does_not_fit(models, monkeypatch):
    from analysis.evidence import gradients

    model, target = models["vit"]
    run = forward_pass(model, encode_image(model, picture(32, 32)))
    assert explain("saliency", run, target).scores.shape == (64,)
    monkeypatch.setattr(gradients, "graph_bytes", lambda *_: 2**60)
    with pytest.raises(
        MemoryBudgetError, match=r"down to the input, would take about .* choose CDAM, GradCAM or"
    ):
        explain("saliency", run, target)


# What goes to the browser ------------------------------------------------------------------------------------------


def test_a_large_picture_comes_with_its_own_pixels_and_a_small_one_once():
    maps = np.zeros((1, 4, 4), dtype=np.float32)
    _, arrays = unpack(patch_map_payload(PatchMaps(picture(200, 100).pixels, maps, ("head 0",))))
    assert "sharp" not in arrays
    smooth = np.asarray(Image.fromarray(picture(30, 40).pixels).resize((1600, 1200)))
    header, arrays = unpack(patch_map_payload(PatchMaps(smooth, maps, ("head 0",))))
    assert header["picture_size"] == [1200, 1600]
    assert arrays["picture"].shape[0] * arrays["picture"].shape[1] <= PICTURE_PIXELS
    decoded = np.asarray(Image.open(io.BytesIO(arrays["sharp"].tobytes())))
    assert decoded.shape == smooth.shape
    assert np.abs(decoded.astype(int) - smooth).mean() < 4


# The page around a long pass ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not is_installed(VIT_S14), reason="bundled models are not installed; run make bundled")
def test_the_page_around_a_long_pass_is_there_before_its_view(monkeypatch):
    """Title, the switch of views and the link: before the pass, and where the view itself has to wait."""
    jobs = let_nothing_start(monkeypatch)
    at = opened("image")

    def start():
        (button,) = (button for button in at.button if button.label == "Compute")
        return button

    def expect_around(words):
        assert words in "".join(element.value for element in at.markdown)
        assert "336 × 224 px" in shown(at)
        assert "16 × 24 patches" in shown(at)
        assert start().key.endswith("_start")

    expect_around("One forward pass over 385 positions")
    at.button_group(key="image_view").set_value("rollout").run()
    assert at.query_params["view"] == "rollout"
    expect_around("One forward pass over 385 positions")
    start().click().run()
    (job,) = jobs._jobs.values()
    assert job.wait(60)
    monkeypatch.setattr(long_runs, "INLINE_SECONDS", 2.0)
    at.button_group(key="image_view").set_value("attention").run()
    monkeypatch.setattr(long_runs, "INLINE_SECONDS", -1.0)
    at.button_group(key="image_view").set_value("rollout").run()
    expect_around("rollout")
    assert "Resized from 451 × 300" in shown(at), "what is told of the picture stands below"
