"""Models of images: a vision transformer, a convolutional net with batch norm, and a U-Net with its data and task."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset


class VisionTransformer(nn.Module):
    """Patches, a class token, and torch's own pre-norm encoder (Dosovitskiy et al. 2021)."""

    def __init__(
        self, channels=1, image_size=8, patch=2, width=32, num_layers=2, num_heads=4, num_classes=10, dropout=0.1
    ):
        super().__init__()
        self.patches = nn.Conv2d(channels, width, kernel_size=patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (image_size // patch) ** 2 + 1, width))
        layer = nn.TransformerEncoderLayer(
            width, num_heads, 4 * width, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), tokens], dim=1)
        return self.head(self.encoder(tokens + self.positions)[:, 0])


class ConvNet(nn.Sequential):
    """Two convolutions with batch norm, pooling and dropout of channels."""

    def __init__(self, channels=1, width=16, num_classes=10):
        first = nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        second = nn.Conv2d(width, 2 * width, 3, padding=1, bias=False), nn.BatchNorm2d(2 * width)
        pooled = nn.Dropout2d(0.1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, num_classes)
        super().__init__(*first, nn.ReLU(inplace=True), nn.MaxPool2d(2), *second, nn.ReLU(inplace=True), *pooled)


class UNet(nn.Module):
    """An encoder and a decoder with one skip connection; logits (B, classes, H, W) (Ronneberger et al. 2015)."""

    def __init__(self, channels=1, width=8, num_classes=3):
        super().__init__()
        self.down = _convolved(channels, width)
        self.bottom = _convolved(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.out = nn.Sequential(_convolved(2 * width, width), nn.Conv2d(width, num_classes, 1))

    def forward(self, images: Tensor) -> Tensor:
        fine = self.down(images)
        coarse = self.bottom(F.max_pool2d(fine, 2))
        return self.out(torch.cat([fine, self.up(coarse)], dim=1))


def _convolved(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(2, after), nn.SiLU())


class Shapes(Dataset):
    """Noisy images (1, size, size) of a disc and a square, with each pixel's class: background, disc or square."""

    def __init__(self, first, last, size=24):
        self.items, self.size = range(first, last), size

    def __len__(self):
        return len(self.items)

    def __getitem__(self, item):
        generator = torch.Generator().manual_seed(self.items[item])
        y, x = torch.meshgrid(torch.arange(self.size), torch.arange(self.size), indexing="ij")
        classes = torch.zeros(self.size, self.size, dtype=torch.int64)
        for number in (1, 2):
            row, column = torch.randint(4, self.size - 4, (2,), generator=generator)
            dy, dx = (y - row).abs(), (x - column).abs()
            classes[(dy**2 + dx**2 <= 16) if number == 1 else (torch.maximum(dy, dx) <= 3)] = number
        noise = 0.2 * torch.randn(1, self.size, self.size, generator=generator)
        return classes[None] / 2 + noise, classes


class Segmentation:
    """Cross-entropy over pixels plus a soft Dice loss (Milletari et al. 2016); evaluates the pixels' accuracy."""

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, classes = batch
        logits = model(images).float()
        wanted = F.one_hot(classes, logits.shape[1]).movedim(-1, 1).to(logits.dtype)
        found = logits.softmax(1)
        overlap = (found * wanted).sum((0, 2, 3))
        dice = 2 * overlap / (found.sum((0, 2, 3)) + wanted.sum((0, 2, 3)) + 1e-6)
        return F.cross_entropy(logits, classes) + 1 - dice.mean()

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[dict[str, Tensor], int]:
        images, classes = batch
        accuracy = (model(images).argmax(1) == classes).float().mean()
        return {"loss": self.loss(model, batch), "accuracy": accuracy}, len(images)
