"""Eight trainings in which there is nothing to find, of sizes at which half precision pays on a CPU with bfloat16."""

from itertools import pairwise

import torch
from planted import OwnLoss
from torch import nn
from torch.nn import functional as F
from transformers import BertConfig, BertForMaskedLM


class VisionTransformer(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 256, 8, stride=8)
        self.positions = nn.Parameter(torch.randn((64 // 8) ** 2, 256) * 0.02)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 4, nn.LayerNorm(256), enable_nested_tensor=False)
        self.head = nn.Linear(256, num_classes)

    def forward(self, images):
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.blocks(tokens).mean(1))


class Recurrent(nn.Module):
    def __init__(self, vocab_size: int, width: int = 512) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocab_size, width), nn.Linear(width, vocab_size)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)

    def forward(self, tokens):
        return self.head(self.lstm(self.embedding(tokens))[0])


class Autoencoder(nn.Sequential):
    def __init__(self, in_features: int) -> None:
        sizes = [in_features, 1024, 1024, 128]
        down = [nn.Sequential(nn.Linear(a, b), nn.GELU()) for a, b in pairwise(sizes)]
        up = [nn.Sequential(nn.GELU(), nn.Linear(a, b)) for a, b in pairwise(sizes[::-1])]
        super().__init__(*down, *up)


class Copying(OwnLoss):
    """The task of an autoencoder."""

    def loss(self, model, batch):
        return F.mse_loss(model(batch[0]).float(), batch[0].float())


class Bert(nn.Module):
    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
        no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        self.bert = BertForMaskedLM(
            BertConfig(vocab_size=vocab_size, max_position_embeddings=128, **sizes, **no_dropout)
        )

    def forward(self, tokens):
        return self.bert(tokens).logits


def _custom(name: str, size: str) -> tuple[str, ...]:
    return "model=custom", f"model._target_=healthy.{name}", f"+model.{size}"


_IMAGES = ("data=synthetic_images", "data.image_size=64", "data.num_classes=16", "data.batch_size=16")
_TOKENS = ("data=synthetic_tokens", "data.vocab_size=1024", "data.seq_len=128", "data.batch_size=16")
_FEATURES = ("data=synthetic", "data.in_features=1024", "data.out_features=16", "data.batch_size=512")
_COPYING = ("task=custom", "task._target_=healthy.Copying")
_GAN = ("model=gan_digits", "model.hidden_size=128", "data.batch_size=256", "optimizer=adam", "optimizer.lr=2e-4")

HEALTHY: dict[str, tuple[str, ...]] = {
    "gpt": ("model=gpt_tiny", "model.num_layers=4", "model.hidden_size=256", "model.num_heads=4", *_TOKENS),
    "mlp": ("model=mlp_small", "model.hidden_size=1024", *_FEATURES),
    "resnet": ("model=resnet18", *_IMAGES),
    "bert": (*_custom("Bert", "vocab_size=1024"), *_TOKENS),
    "vit": (*_custom("VisionTransformer", "num_classes=16"), *_IMAGES),
    "lstm": (*_custom("Recurrent", "vocab_size=1024"), *_TOKENS),
    "autoencoder": (*_custom("Autoencoder", "in_features=1024"), *_FEATURES, *_COPYING),
    "gan": (*_GAN, "trainer.max_grad_norm=null"),
}
