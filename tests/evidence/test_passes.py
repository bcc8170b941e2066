"""The shared pass: gradients are autograd's own, in every family, and the model is left as it was."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.testing import assert_close

from analysis.evidence.explanation import explanation_of, to_words, upsample
from analysis.evidence.passes import forward_pass, plain_outputs
from analysis.evidence.targets import class_logit, concept_similarity, token_log_probability
from analysis.inputs import encode_text
from analysis.models import load_model
from attn_core.errors import UnsupportedModelError
from tests.input_helpers import BERT, GPT2, byte_level, loaded, unigram, word_piece
from tests.tiny_models import BY_NAME

TEXT = "The film is not bad, surprisingly."


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return loaded(
        tmp_path_factory.mktemp("bert"), "BertForSequenceClassification", "BertConfig", word_piece(), **BERT
    )


@pytest.fixture(scope="module")
def families(tmp_path_factory, bert):
    """A classifier, a causal and a masked language model, an encoder-decoder, and a model outside the interface."""
    make = tmp_path_factory.mktemp
    small = {"vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 40}
    return {
        "bert": bert,
        "gpt2": loaded(make("gpt2"), "GPT2LMHeadModel", "GPT2Config", byte_level(), **GPT2),
        "llama": loaded(
            make("llama"), "LlamaForCausalLM", "LlamaConfig", byte_level(), num_attention_heads=4,
            num_key_value_heads=2, **small,
        ),
        "masked": loaded(make("masked"), "BertForMaskedLM", "BertConfig", word_piece(), **BERT),
        "t5": loaded(
            make("t5"), "T5ForConditionalGeneration", "T5Config", unigram(), vocab_size=400, d_model=32, d_kv=8,
            d_ff=40, num_layers=2, num_heads=4, decoder_start_token_id=0,
        ),
        "deberta": loaded(
            make("deberta"), "DebertaV2ForSequenceClassification", "DebertaV2Config", word_piece(),
            num_attention_heads=4, **small,
        ),
    }  # fmt: skip


NAMES = ("bert", "gpt2", "llama", "masked", "t5", "deberta")


def target_of(name):
    return class_logit(1) if name in ("bert", "deberta") else token_log_probability(1, 7)


def by_hand(model, inputs, target):
    """Gradient of the target at the input embeddings, by a hook and autograd alone, with the library's attention."""
    seen = []

    def hook(_, __, output):
        if seen:
            return None
        seen.append(output.detach().requires_grad_())
        return seen[0]

    owner = model.module.get_encoder() if model.is_encoder_decoder else model.module
    handle = owner.get_input_embeddings().register_forward_hook(hook)
    try:
        with torch.enable_grad():
            outputs = model.module(**inputs.tensors)
            logits = outputs.logits[0]
            number = logits[1] if logits.ndim == 1 else logits[1].log_softmax(-1)[7]
            return torch.autograd.grad(number, seen[0])[0][0], float(number.detach())
    finally:
        handle.remove()


@pytest.mark.parametrize("name", NAMES)
def test_gradients_at_the_embeddings_are_autograds_own(name, families):
    model = families[name]
    inputs = encode_text(model, TEXT)
    run, target = forward_pass(model, inputs), target_of(name)
    expected, value = by_hand(model, inputs, target)
    found = run.gradients(target)
    assert run.value(target) == pytest.approx(value, rel=1e-4, abs=1e-5)
    assert_close(found.embedded, expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max()))
    assert float(found.embedded.abs().max()) > 0


@pytest.mark.parametrize("name", NAMES)
def test_every_layer_has_a_gradient(name, families):
    model = families[name]
    run = forward_pass(model, encode_text(model, TEXT))
    found = run.gradients(target_of(name))
    expected = {"t5": {"encoder", "decoder", "cross"}, "gpt2": {"decoder"}, "llama": {"decoder"}}
    assert set(run.layers) == expected.get(name, {"encoder"})
    for kind, layers in run.layers.items():
        assert len(layers) == 2
        for layer, gradient in zip(layers, found.layers[kind], strict=True):
            rows = layer.weight_gradient(gradient, slice(0, layer.map.queries))
            assert rows.shape == layer.map.shape[1:]
            assert torch.isfinite(rows).all()
            assert float(rows.abs().max()) > 0


def test_token_gradients_are_those_of_the_whole_pass_and_cost_no_lower_layer(bert):
    run = forward_pass(bert, encode_text(bert, TEXT))
    alone = [run.token_gradient(class_logit(1), layer) for layer in range(2)]
    together = run.gradients(class_logit(1)).tokens
    assert len(together) == 2
    for one, other in zip(alone, together, strict=True):
        assert_close(one, other)
    assert run.gradients(class_logit(1)) is run.gradients(class_logit(1))  # one backward pass a target
    assert not torch.equal(run.gradients(class_logit(0)).embedded, run.gradients(class_logit(1)).embedded)


def test_a_pass_works_without_gradients_around_it_and_its_outputs_are_the_models_own(families):
    for name in ("bert", "t5"):
        model = families[name]
        inputs = encode_text(model, TEXT)
        with torch.no_grad():
            run = forward_pass(model, inputs)
            assert float(run.gradients(target_of(name)).embedded.abs().max()) > 0
            plain = model.module(**inputs.tensors).logits
        assert_close(run.outputs.logits.detach(), plain, rtol=1e-4, atol=1e-5)
        outputs = plain_outputs(model, inputs.tensors, run.outputs.kept)
        assert_close(outputs.hidden, run.outputs.hidden.detach(), rtol=1e-4, atol=1e-5)
        assert not outputs.logits.requires_grad


def test_nothing_stays_changed_also_after_an_exception(bert):
    module = bert.module

    def state():
        hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules()]
        flags = [(p.requires_grad, p.grad) for p in module.parameters()]
        return sum(hooks), flags, module.training, module.config._attn_implementation

    before = state()
    inputs = encode_text(bert, TEXT)
    run = forward_pass(bert, inputs)
    run.gradients(class_logit(0))
    assert state() == before
    broken = {"input_ids": torch.full((1, 4), 10**6)}
    with pytest.raises(IndexError):
        plain_outputs(bert, broken, torch.arange(4))
    with pytest.raises(ValueError, match="index must be between 0 and 1 but is 5"):
        run.gradients(class_logit(5))
    assert state() == before
    assert torch.is_grad_enabled()


def test_threads_on_one_model_see_their_own_pass(bert):
    texts = ["Not bad.", "The film is bad, and long, and bad again.", "Good.", "A film is a film."] * 3
    expected = [
        forward_pass(bert, encode_text(bert, text)).gradients(class_logit(1)).embedded for text in texts
    ]
    found = [None] * len(texts)

    def work(index):
        found[index] = forward_pass(bert, encode_text(bert, texts[index])).gradients(class_logit(1)).embedded

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, rtol=1e-4, atol=1e-7)


def test_models_without_a_place_for_gradients_are_refused_in_words(tmp_path):
    from analysis.images import read_picture
    from analysis.inputs import encode_image
    from analysis.samples import sample_picture_bytes

    folder = tmp_path / "swin"
    BY_NAME["Swin"].build().save_pretrained(folder)
    model = load_model(folder, device="cpu")
    picture = read_picture(sample_picture_bytes("coffee"), name="coffee")
    with pytest.raises(UnsupportedModelError, match="attends inside windows"):
        forward_pass(model, encode_image(model, picture))


def test_a_target_that_the_input_does_not_reach_is_told(bert):
    run = forward_pass(bert, encode_text(bert, TEXT))
    constant = concept_similarity(torch.ones(32), "one", pooling="mean")
    object.__setattr__(constant, "value", lambda outputs: torch.ones(1))
    with pytest.raises(UnsupportedModelError, match="does not depend on the input embeddings"):
        run.gradients(constant)
    endless = class_logit(0)
    object.__setattr__(endless, "value", lambda outputs: torch.full((1,), float("nan")))
    object.__setattr__(endless, "key", ("nan",))
    with pytest.raises(ValueError, match="is nan; choose another"):
        run.gradients(endless)


def test_special_tokens_are_left_out_and_told(bert):
    inputs = encode_text(bert, "Good film")
    raw = torch.tensor([6.0, 1.0, -2.0, *[0.0] * (len(inputs.tokens) - 4), -1.0])
    found = explanation_of("cdam", raw, inputs, target="good")
    assert found.positions.tolist() == list(range(1, len(inputs.tokens) - 1))
    assert found.scores[:2].tolist() == [1.0, -2.0]
    assert found.removed == pytest.approx(0.7)
    assert found.strongest(2) == [1, 0]
    assert found.positive()[:2].tolist() == [1.0, 0.0]
    with pytest.raises(ValueError, match="raw must be"):
        explanation_of("cdam", raw[:-1], inputs)
    with pytest.raises(ValueError, match="is of a text and has no grid"):
        found.to_grid()


def test_words_sum_their_tokens(bert):
    inputs = encode_text(bert, "surprisingly unbelievable films")
    raw = torch.arange(float(len(inputs.tokens)))
    found, groups = to_words(explanation_of("cdam", raw, inputs), inputs.tokens)
    assert len(groups) == 3
    assert [index for group in groups for index in group] == list(range(1, len(inputs.tokens) - 1))
    assert found.scores.tolist() == [float(sum(group)) for group in groups]


def test_a_patch_is_drawn_as_its_square_or_smoothly():
    grid = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    squares = upsample(grid, 4, 6)
    assert squares.shape == (4, 6)
    assert squares[:2, :3].tolist() == [[0.0] * 3] * 2
    assert squares[2:, 3:].tolist() == [[3.0] * 3] * 2
    assert 0 < upsample(grid, 4, 4, smooth=True)[0, 1] < 1
