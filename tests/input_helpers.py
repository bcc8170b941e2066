"""Small real tokenizers and models for the tests of inputs: trained on a few sentences, saved, loaded as users do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from analysis.models import LoadedModel, load_model

SENTENCES = [
    "The quick brown fox jumps over the lazy dog while nine naive cafe owners resume their work.",
    "A great day: hello world, we say i j k and a<b<c is code.",
    "He said 3.14 and 1,000 are numbers; don't forget the mask.",
    "Karadzic is a name. Das Haus ist alt. Le pain est bon.",
    "the house is old and the bread is good and the day is great",
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MARKS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def word_piece(*, lower: bool = True) -> transformers.PreTrainedTokenizerFast:
    """BERT's kind: accents stripped, unknown words whole, [CLS] A [SEP] B [SEP] with segment ids."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=160, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", tokenizer.token_to_id("[CLS]")), ("[SEP]", tokenizer.token_to_id("[SEP]"))],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        model_max_length=64,
    )  # fmt: skip


def byte_level(*, roberta: bool = False, trim: bool = True) -> transformers.PreTrainedTokenizerFast:
    """GPT-2's kind: every byte known, no padding, no special tokens; or RoBERTa's, with <s> A </s></s> B </s>."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=MARKS if roberta else ["<|endoftext|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    if roberta:
        tokenizer.post_processor = processors.RobertaProcessing(
            ("</s>", 2), ("<s>", 0), trim_offsets=trim, add_prefix_space=False
        )
        names = dict(
            zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), MARKS, strict=True)
        )
        names |= {"cls_token": "<s>", "sep_token": "</s>"}
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
        names = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def unigram() -> transformers.PreTrainedTokenizerFast:
    """SentencePiece's kind (XLM-R, T5): NFKC, ▁ for spaces, unknown characters; A </s> B </s>."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=MARKS, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)]
    )
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), MARKS, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def loaded(
    folder: Path, model: str, config: str, processor: Any, *, seed: int = 0, **options: Any
) -> LoadedModel:
    """A tiny random model of that class, saved with its tokenizer or image processor and loaded as a user would."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = getattr(transformers, model)(getattr(transformers, config)(**options))
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "position" in name:  # started at zero in some families: a wrong position would not show
                parameter.normal_(generator=torch.Generator().manual_seed(seed))
    module.save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder)
    return load_model(folder, device="cpu")


BERT = {
    "vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 64,
}  # fmt: skip
GPT2 = {"vocab_size": 400, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
BART = {
    "vocab_size": 400, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 64,
    "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
T5 = {
    "vocab_size": 400, "d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4, "pad_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
VIT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "patch_size": 16,
}  # fmt: skip


def loud_classifier(folder: Path) -> LoadedModel:
    """A BERT of three classes with weights so large that every token matters."""
    model = loaded(folder, "BertForSequenceClassification", "BertConfig", word_piece(), num_labels=3, **BERT)
    with torch.no_grad():
        for parameter in model.module.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8.0)
    return model
