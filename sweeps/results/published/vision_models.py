"""Networks for images, as torchvision, timm and NVIDIA's examples define them."""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _convolution(
    channels_in: int,
    out: int,
    size: int = 3,
    *,
    stride: int = 1,
    groups: int = 1,
    activation: type[nn.Module] | None = nn.ReLU,
) -> nn.Sequential:
    """Convolution, batch norm, and an activation in place."""
    convolution = nn.Conv2d(channels_in, out, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out), *(() if activation is None else (activation(inplace=True),)))


class SqueezeExcitation(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.squeeze, self.expand = nn.Linear(channels, channels // 16), nn.Linear(channels // 16, channels)

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.sigmoid(self.expand(F.relu(self.squeeze(x.mean((2, 3))), inplace=True)))
        return x * weights[:, :, None, None]


class ResidualBlock(nn.Module):
    """A basic block of two convolutions (`width` None) or a bottleneck of three with the stride in the middle."""

    def __init__(self, channels_in: int, out: int, width: int | None, groups: int, stride: int, excites: bool) -> None:
        super().__init__()
        if width is None:
            layers = [_convolution(channels_in, out, stride=stride), _convolution(out, out, activation=None)]
        else:
            middle = _convolution(width, width, stride=stride, groups=groups)
            layers = [_convolution(channels_in, width, 1), middle, _convolution(width, out, 1, activation=None)]
        self.layers = nn.Sequential(*layers, *([SqueezeExcitation(out)] if excites else []))
        is_same = stride == 1 and channels_in == out
        self.shortcut = None if is_same else _convolution(channels_in, out, 1, stride=stride, activation=None)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        y += x if self.shortcut is None else self.shortcut(x)
        return F.relu(y, inplace=True)


def resnet(
    depths: Sequence[int], *, is_basic: bool = False, groups: int = 1, width: int = 64, excites: bool = False
) -> nn.Module:
    """torchvision's ResNet (v1.5), ResNeXt (`groups`, and `width` for each) and Wide ResNet (`width` 128)."""
    layers: list[nn.Module] = [_convolution(3, 64, 7, stride=2), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, depth in enumerate(depths):
        planes = 64 << stage
        out, middle = (planes, None) if is_basic else (4 * planes, planes * width // 64 * groups)
        for number in range(depth):
            stride = 2 if stage and not number else 1
            layers.append(ResidualBlock(channels, out, middle, groups, stride, excites))
            channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def vgg(depths: Sequence[int], *, normalizes: bool = False) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for depth, out in zip(depths, (64, 128, 256, 512, 512), strict=True):
        for _ in range(depth):
            norm = [nn.BatchNorm2d(out)] if normalizes else []
            layers += [nn.Conv2d(channels, out, 3, padding=1), *norm, nn.ReLU(inplace=True)]
            channels = out
        layers.append(nn.MaxPool2d(2))
    hidden = [[nn.Linear(n, 4096), nn.ReLU(inplace=True), nn.Dropout()] for n in (512 * 7 * 7, 4096)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *hidden[0], *hidden[1], nn.Linear(4096, 1000))


class DenseLayer(nn.Module):
    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.Conv2d(channels, 4 * growth, 1, bias=False)),
            *(nn.BatchNorm2d(4 * growth), nn.ReLU(inplace=True)),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, earlier: list[Tensor]) -> list[Tensor]:
        return [*earlier, self.layers(torch.cat(earlier, 1))]


class DenseBlock(nn.ModuleList):
    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for layer in self:
            found = layer(found)
        return torch.cat(found, 1)


def densenet(depths: Sequence[int], growth: int, channels: int) -> nn.Module:
    layers: list[nn.Module] = [_convolution(3, channels, 7, stride=2), nn.MaxPool2d(3, 2, 1)]
    for number, depth in enumerate(depths):
        layers.append(DenseBlock(DenseLayer(channels + i * growth, growth) for i in range(depth)))
        channels += depth * growth
        layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
        if number + 1 < len(depths):
            layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class Fire(nn.Module):
    def __init__(self, channels: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.narrow, self.wide = nn.Conv2d(squeezed, expanded, 1), nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x), inplace=True)
        return torch.cat([F.relu(self.narrow(x), inplace=True), F.relu(self.wide(x), inplace=True)], 1)


def squeezenet() -> nn.Module:
    pool = partial(nn.MaxPool2d, 3, 2, ceil_mode=True)
    sizes = [(96, 16, 64), (128, 16, 64), (128, 32, 128), (256, 32, 128), (256, 48, 192), (384, 48, 192)]
    fires = [Fire(*size) for size in (*sizes, (384, 64, 256), (512, 64, 256))]
    return nn.Sequential(
        *(nn.Conv2d(3, 96, 7, 2), nn.ReLU(inplace=True), pool(), *fires[:3], pool(), *fires[3:7], pool(), fires[7]),
        *(nn.Dropout(), nn.Conv2d(512, 1000, 1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )


class InvertedResidual(nn.Module):
    """MobileNetV2's block, also MnasNet's."""

    def __init__(
        self, channels: int, out: int, size: int, stride: int, expand: int, activation: type[nn.Module]
    ) -> None:
        super().__init__()
        wide = channels * expand
        first = [] if expand == 1 else [_convolution(channels, wide, 1, activation=activation)]
        depthwise = _convolution(wide, wide, size, stride=stride, groups=wide, activation=activation)
        self.layers = nn.Sequential(*first, depthwise, _convolution(wide, out, 1, activation=None))
        self.is_residual = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.is_residual else y


def inverted_residuals(
    blocks: Sequence[tuple[int, int, int, int, int]], stem: int, last: int, activation: type[nn.Module]
) -> nn.Module:
    """Blocks of (expansion, channels, number, stride, size of the kernel); MobileNetV2 and MnasNet."""
    layers: list[nn.Module] = [_convolution(3, stem, stride=2, activation=activation)]
    channels = stem
    for expand, out, number, stride, size in blocks:
        for place in range(number):
            layers.append(InvertedResidual(channels, out, size, 1 if place else stride, expand, activation))
            channels = out
    layers += [_convolution(channels, last, 1, activation=activation), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Dropout(0.2), nn.Linear(last, 1000))


class ShuffleBlock(nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        half, self.stride = out // 2, stride
        thin = partial(_convolution, groups=half, activation=None)
        self.left = None
        if stride > 1:
            depthwise = _convolution(channels, channels, stride=stride, groups=channels, activation=None)
            self.left = nn.Sequential(depthwise, _convolution(channels, half, 1))
        right = _convolution(channels if stride > 1 else half, half, 1)
        self.right = nn.Sequential(right, thin(half, half, stride=stride), _convolution(half, half, 1))

    def forward(self, x: Tensor) -> Tensor:
        if self.left is None:
            kept, x = x.chunk(2, 1)
        else:
            kept = self.left(x)
        batch, _, height, width = x.shape
        y = torch.cat([kept, self.right(x)], 1)
        height, width = y.shape[2:]
        return y.view(batch, 2, -1, height, width).transpose(1, 2).contiguous().view(batch, -1, height, width)


def shufflenet() -> nn.Module:
    layers: list[nn.Module] = [_convolution(3, 24, stride=2), nn.MaxPool2d(3, 2, 1)]
    channels = 24
    for number, out in zip((4, 8, 4), (116, 232, 464), strict=True):
        layers += [ShuffleBlock(channels, out, 2), *(ShuffleBlock(out, out, 1) for _ in range(number - 1))]
        channels = out
    return nn.Sequential(
        *layers, _convolution(464, 1024, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 1000)
    )


class PatchEmbedding(nn.Module):
    def __init__(self, patch: int, hidden: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, hidden))
        self.positions = nn.Parameter(torch.zeros(1, (224 // patch) ** 2 + 1, hidden))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        return torch.cat([self.first.expand(images.shape[0], -1, -1), patches], 1) + self.positions


class ViTLayer(nn.Module):
    """timm's block with attention out of two products and a softmax."""

    def __init__(self, hidden: int, heads: int, wide: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.output = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, wide), nn.Linear(wide, hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        query, key, value = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (query @ key.transpose(-1, -2)) * query.shape[-1] ** -0.5
        x = x + self.output((scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, hidden))
        y: Tensor = self.down(F.gelu(self.up(self.second(x))))
        return x + y


class ViT(nn.Module):
    def __init__(self, patch: int, hidden: int, layers: int, heads: int, wide: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(PatchEmbedding(patch, hidden), *(ViTLayer(hidden, heads, wide) for _ in range(layers))),
            nn.LayerNorm(hidden),
        )
        self.head = nn.Linear(hidden, 1000)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(images)[:, 0])
        return logits
