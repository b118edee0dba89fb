"""The workloads of `measurements.csv`, rebuilt: models on torch's meta device, their batches and losses."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampsweep.models.gpt import GPT
from ampsweep.models.mlp import MLP
from ampsweep.models.resnet import ResNet
from ampsweep.tasks.classification import Classification
from ampsweep.tasks.language_modeling import LanguageModeling
from ampsweep.tasks.regression import Regression
from published.language_models import (
    Classifier,
    LanguageModel,
    OwnLayerNorm,
    Transformer,
    bert,
    from_scratch,
    gpt2,
    opt,
    own_gelu,
)
from published.vision_models import ViT, densenet, inverted_residuals, resnet, shufflenet, squeezenet, vgg

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Workload:
    """A model, the batch of a size (zeros), and the loss of both."""

    family: str  # an architecture; `measurements.csv` repeats it for each row
    model: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    loss: Callable[[nn.Module, Any], Tensor]


def _ids(batch: int, length: int) -> Tensor:
    return torch.zeros(batch, length, dtype=torch.int64)


def _padding(batch: int, length: int) -> Tensor:
    return torch.zeros(batch, 1, 1, length)


def _tokens_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


def _squad_loss(model: nn.Module, batch: Batch) -> Tensor:
    ids, padding, positions = batch
    start, end = model(ids, padding).split(1, dim=-1)
    return (F.cross_entropy(start.squeeze(-1), positions) + F.cross_entropy(end.squeeze(-1), positions)) / 2


def _classification_loss(model: nn.Module, batch: Batch) -> Tensor:
    *inputs, labels = batch
    return F.cross_entropy(model(*inputs), labels)


def _pretraining_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Of all positions, or of the masked ones if the batch has their indices."""
    ids, padding, labels, pair_labels, *masked = batch
    words, following = model(ids, padding, masked=masked[0] if masked else None)
    return _tokens_loss(words, labels) + F.cross_entropy(following, pair_labels)


def _shifted_loss(model: nn.Module, batch: Batch) -> Tensor:
    ids, *masks = batch
    return _tokens_loss(model(ids, *masks)[0][:, :-1].contiguous(), ids[:, 1:].contiguous())


def _unshifted_loss(model: nn.Module, batch: Batch) -> Tensor:
    ids, *masks = batch
    return _tokens_loss(model(ids, *masks)[0], ids)


def _sum_loss(model: nn.Module, batch: Batch) -> Tensor:
    return model(*batch).sum()  # type: ignore[no-any-return]


_BERT_LARGE: Final = Transformer(30528, 512, 1024, 24, 16, probabilities=bert, types=2)
_BERT_BASE: Final = replace(_BERT_LARGE, hidden=768, layers=12, heads=12)
_BERT_30522: Final = replace(_BERT_LARGE, vocab=30522)
_GPT2: Final = Transformer(
    *(50257, 1024, 768, 12, 12), probabilities=gpt2, activation=own_gelu, norm_first=True, joint=True
)
_GPT2_LARGE: Final = replace(_GPT2, hidden=1280, layers=36, heads=20)
_GPT3_XL: Final = replace(_GPT2, positions=2048, hidden=3072, layers=24, heads=24)
_GPT3_2_7B: Final = replace(_GPT2, positions=2048, hidden=2560, layers=32, heads=32)
_OPT_1_3B: Final = Transformer(
    *(50272, 2050, 2048, 24, 32), probabilities=opt, activation=F.relu, norm_first=True, attention_dropout=0.0
)
_SCRATCH: Final = Transformer(
    *(50257, 1024, 768, 12, 12),
    probabilities=from_scratch,
    activation=own_gelu,
    norm=OwnLayerNorm,
    norm_first=True,
    qkv_bias=False,
)
_SCRATCH_TORCH: Final = replace(_SCRATCH, activation=partial(F.gelu, approximate="tanh"), norm=nn.LayerNorm)
_SCRATCH_SDPA: Final = replace(_SCRATCH_TORCH, probabilities=None, joint=True)


def _squad(sizes: Transformer) -> Workload:
    def batch(size: int) -> Batch:
        return _ids(size, 384), _padding(size, 384), torch.zeros(size, dtype=torch.int64)

    return Workload("bert", partial(Classifier, sizes, pools=False), batch, _squad_loss)


def _sequences(sizes: Transformer, length: int) -> Workload:
    def batch(size: int) -> Batch:
        return _ids(size, length), _padding(size, length), torch.zeros(size, dtype=torch.int64)

    return Workload("bert", partial(Classifier, sizes, pools=True), batch, _classification_loss)


def _pretraining(length: int, *, masked_only: bool) -> Workload:
    """BERT's; 15 % of the positions are masked."""

    def batch(size: int) -> Batch:
        labels = torch.zeros(round(0.15 * size * length) if masked_only else size * length, dtype=torch.int64)
        inputs = _ids(size, length), _padding(size, length), labels, torch.zeros(size, dtype=torch.int64)
        return (*inputs, torch.zeros_like(labels)) if masked_only else inputs

    return Workload("bert", partial(LanguageModel, _BERT_LARGE, transforms=True), batch, _pretraining_loss)


def _language(
    family: str,
    sizes: Transformer,
    length: int,
    loss: Callable[[nn.Module, Batch], Tensor],
    masks: Callable[[int, int], Batch],
    *,
    tied: bool = True,
    transforms: bool = False,
) -> Workload:
    def batch(size: int) -> Batch:
        return _ids(size, length), *masks(size, length)

    return Workload(family, partial(LanguageModel, sizes, tied=tied, transforms=transforms), batch, loss)


def _images(
    family: str, model: Callable[[], nn.Module], loss: Callable[[nn.Module, Any], Tensor] = _classification_loss
) -> Workload:
    def batch(size: int) -> Batch:
        images = torch.zeros(size, 3, 224, 224)
        return (images,) if loss is _sum_loss else (images, torch.zeros(size, dtype=torch.int64))

    return Workload(family, model, batch, loss)


def _causal_mask(size: int, length: int) -> Batch:
    return (torch.ones(1, 1, length, length, dtype=torch.bool),)


def _both_masks(size: int, length: int) -> Batch:
    return *_causal_mask(size, length), _padding(size, length)


def _full_mask(size: int, length: int) -> Batch:
    return (torch.zeros(size, 1, length, length),)


def _padding_mask(size: int, length: int) -> Batch:
    return (_padding(size, length),)


def _no_mask(size: int, length: int) -> Batch:
    return ()


def _suite_gpt(vocab_size: int) -> Workload:
    def batch(size: int) -> Batch:
        return _ids(size, 1024), _ids(size, 1024)

    return Workload("gpt", partial(GPT, vocab_size, 1024, 12, 768, 12), batch, LanguageModeling().loss)


def _values(batch: int) -> Batch:
    return torch.zeros(batch, 4096), torch.zeros(batch, 4096)


def _hugging_face(family: str, name: str, length: int, **sizes: int) -> Workload:
    """A class of transformers, by default in its default size, as in torch's benchmarks of its compiler."""

    def model() -> nn.Module:
        import transformers

        kind = getattr(transformers, name)
        return kind(kind.config_class(attn_implementation="eager", use_cache=False, **sizes))  # type: ignore[no-any-return]

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        ids, positions = batch
        answers = {"start_positions": positions, "end_positions": positions}
        found: Tensor = model(ids, **(answers if name.endswith("Answering") else {"labels": ids})).loss
        return found

    return Workload(family, model, lambda size: (_ids(size, length), torch.zeros(size, dtype=torch.int64)), loss)


_MOBILENET: Final = tuple(
    (expand, channels, number, stride, 3)
    for expand, channels, number, stride in (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    )
)
_MNASNET: Final = (
    *((1, 16, 1, 1, 3), (3, 24, 3, 2, 3), (3, 40, 3, 2, 5), (6, 80, 3, 2, 5)),
    *((6, 96, 2, 1, 3), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)),
)
_RESNET101: Final = (3, 4, 23, 3)
_NETS: Final[dict[str, tuple[str, Callable[[], nn.Module]]]] = {
    "resnet18": ("resnet", partial(resnet, (2, 2, 2, 2), is_basic=True)),
    "resnet34": ("resnet", partial(resnet, (3, 4, 6, 3), is_basic=True)),
    "resnet50": ("resnet", partial(resnet, (3, 4, 6, 3))),
    "resnet101": ("resnet", partial(resnet, _RESNET101)),
    "resnet152": ("resnet", partial(resnet, (3, 8, 36, 3))),
    "wide_resnet50_2": ("resnet", partial(resnet, (3, 4, 6, 3), width=128)),
    "resnext50_32x4d": ("resnext", partial(resnet, (3, 4, 6, 3), groups=32, width=4)),
    "resnext101_32x4d": ("resnext", partial(resnet, _RESNET101, groups=32, width=4)),
    "resnext101_32x8d": ("resnext", partial(resnet, _RESNET101, groups=32, width=8)),
    "se_resnext101_32x4d": ("resnext", partial(resnet, _RESNET101, groups=32, width=4, excites=True)),
    "vgg16": ("vgg", partial(vgg, (2, 2, 3, 3, 3))),
    "vgg19_bn": ("vgg", partial(vgg, (2, 2, 4, 4, 4), normalizes=True)),
    "densenet121": ("densenet", partial(densenet, (6, 12, 24, 16), 32, 64)),
    "densenet161": ("densenet", partial(densenet, (6, 12, 36, 24), 48, 96)),
    "squeezenet1_0": ("squeezenet", squeezenet),
    "mobilenet_v2": ("mobilenet", partial(inverted_residuals, _MOBILENET, 32, 1280, nn.ReLU6)),
    "mnasnet1_0": ("mobilenet", partial(inverted_residuals, _MNASNET, 32, 1280, nn.ReLU)),
    "shufflenet_v2_x1_0": ("shufflenet", shufflenet),
    "vit_tiny_patch16": ("vit", partial(ViT, 16, 192, 12, 3, 768)),
    "vit_small_patch16": ("vit", partial(ViT, 16, 384, 12, 6, 1536)),
    "vit_base_patch16": ("vit", partial(ViT, 16, 768, 12, 12, 3072)),
    "vit_base_patch32": ("vit", partial(ViT, 32, 768, 12, 12, 3072)),
    "vit_large_patch16": ("vit", partial(ViT, 16, 1024, 24, 16, 4096)),
    "vit_giant_patch14": ("vit", partial(ViT, 14, 1408, 40, 16, 6144)),
}

WORKLOADS: Final[dict[str, Workload]] = {
    "bert_base_squad": _squad(_BERT_BASE),
    "bert_large_squad": _squad(_BERT_LARGE),
    "bert_large_classification": _sequences(_BERT_30522, 512),
    "bert_large_pretraining_128": _pretraining(128, masked_only=False),
    "bert_large_pretraining_512": _pretraining(512, masked_only=False),
    "bert_large_masked_pretraining_128": _pretraining(128, masked_only=True),
    "bert_large_language_512": _language("bert", _BERT_30522, 512, _unshifted_loss, _padding_mask, transforms=True),
    "gpt2": _language("gpt", _GPT2, 1024, _shifted_loss, _both_masks),
    "gpt2_large": _language("gpt", _GPT2_LARGE, 1024, _unshifted_loss, _causal_mask),
    "gpt3_xl": _language("gpt", _GPT3_XL, 2048, _unshifted_loss, _causal_mask),
    "gpt3_2_7b": _language("gpt", _GPT3_2_7B, 2048, _unshifted_loss, _causal_mask),
    "opt_1_3b": _language("opt", _OPT_1_3B, 2048, _unshifted_loss, _full_mask),
    "gpt2_from_scratch": _language("gpt", _SCRATCH, 1024, _unshifted_loss, _causal_mask, tied=False),
    "gpt2_torch_norm": _language("gpt", _SCRATCH_TORCH, 1024, _unshifted_loss, _causal_mask, tied=False),
    "gpt2_sdpa": _language("gpt", _SCRATCH_SDPA, 1024, _unshifted_loss, _no_mask, tied=False),
    "gpt2_sdpa_50304": _language(
        "gpt", replace(_SCRATCH_SDPA, vocab=50304), 1024, _unshifted_loss, _no_mask, tied=False
    ),
    "suite_gpt_small": _suite_gpt(50257),
    "suite_gpt_small_50304": _suite_gpt(50304),
    "suite_mlp_recipe": Workload("mlp", partial(MLP, 4096, 4096, 4096, 3), _values, Regression().loss),
    "suite_resnet50": _images("resnet", partial(ResNet, 50, 1000, 3, 224), Classification().loss),
    "albert_language": _hugging_face("albert", "AlbertForMaskedLM", 512),
    "albert_answers": _hugging_face("albert", "AlbertForQuestionAnswering", 512),
    "bart": _hugging_face("bart", "BartForConditionalGeneration", 1024),
    "pegasus": _hugging_face("bart", "PegasusForConditionalGeneration", 128),
    "megatron_bert_answers": _hugging_face("bert", "MegatronBertForQuestionAnswering", 512),
    "distilbert_answers": _hugging_face("bert", "DistilBertForQuestionAnswering", 128),
    "t5_small": _hugging_face("t5", "T5ForConditionalGeneration", 1024, decoder_start_token_id=0),
    "t5_large": _hugging_face(
        "t5",
        "T5ForConditionalGeneration",
        512,
        decoder_start_token_id=0,
        d_model=1024,
        d_ff=4096,
        num_layers=24,
        num_heads=16,
    ),
    "xlnet": _hugging_face("xlnet", "XLNetLMHeadModel", 512),
    "gpt2_large_512": _language("gpt", _GPT2_LARGE, 512, _shifted_loss, _causal_mask),
    **{name: _images(*net) for name, net in _NETS.items()},
    **{f"{name}_sum": _images(*_NETS[name], _sum_loss) for name in ("vgg16", "resnet152", "densenet161")},
}
