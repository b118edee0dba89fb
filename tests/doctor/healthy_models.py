"""Models of healthy trainings, of sizes at which half precision pays on a CPU that computes in bfloat16."""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F
from transformers import BertConfig, BertForMaskedLM


class VisionTransformer(nn.Module):
    """A transformer on patches of an image."""

    def __init__(
        self, num_classes: int, image_size: int = 64, patch: int = 8, width: int = 256, depth: int = 4, heads: int = 4
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.positions = nn.Parameter(torch.randn((image_size // patch) ** 2, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images):
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(tokens)).mean(1))


class Recurrent(nn.Module):
    """A language model by LSTM."""

    def __init__(self, vocab_size: int, width: int = 512, depth: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.lstm = nn.LSTM(width, width, depth, batch_first=True)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens):
        return self.head(self.lstm(self.embedding(tokens))[0])


class Autoencoder(nn.Module):
    """A deep autoencoder with a narrow middle."""

    def __init__(self, in_features: int, widths=(1024, 1024, 128)) -> None:
        super().__init__()
        sizes = [in_features, *widths]
        down = [nn.Sequential(nn.Linear(a, b), nn.GELU()) for a, b in pairwise(sizes)]
        sizes.reverse()
        up = [nn.Sequential(nn.GELU(), nn.Linear(a, b)) for a, b in pairwise(sizes)]
        self.encoder, self.decoder = nn.Sequential(*down), nn.Sequential(*up)

    def forward(self, x):
        return self.decoder(self.encoder(x))


class Copying:
    """The task of an autoencoder."""

    def loss(self, model, batch):
        return F.mse_loss(model(batch[0]).float(), batch[0].float())

    def evaluate(self, model, batch):
        return {"loss": self.loss(model, batch).detach()}, len(batch[0])


class Bert(nn.Module):
    """Hugging Face's BERT, of a smaller size, on tokens."""

    def __init__(self, vocab_size: int, width: int = 256, depth: int = 4, seq_len: int = 128) -> None:
        super().__init__()
        sizes = {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": 4}
        more = {"intermediate_size": 4 * width, "max_position_embeddings": seq_len, "hidden_dropout_prob": 0.0}
        self.bert = BertForMaskedLM(
            BertConfig(vocab_size=vocab_size, attention_probs_dropout_prob=0.0, **sizes, **more)
        )

    def forward(self, tokens):
        return self.bert(tokens).logits
