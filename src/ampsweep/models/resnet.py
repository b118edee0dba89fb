"""ResNet-18 and ResNet-50: He et al. 2015, "Deep Residual Learning for Image Recognition"."""

import torch.nn.functional as F
from torch import Tensor, nn

from ampsweep.argument_checks import require_positive
from ampsweep.models.activation_checkpointing import CheckpointedModel


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = _shortcut(in_channels, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return F.relu(out, inplace=True)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut; the 3x3 one has the stride (torchvision's "v1.5")."""

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        out_channels = channels * self.expansion
        self.conv1 = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.downsample = _shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = F.relu(self.bn2(self.conv2(out)), inplace=True)
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return F.relu(out, inplace=True)


Block = type[BasicBlock] | type[Bottleneck]


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Sequential | None:
    """A strided 1x1 convolution if the block changes the shape."""
    if stride == 1 and in_channels == out_channels:
        return None
    return nn.Sequential(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels))


class ResNet(CheckpointedModel):
    """torchvision's ResNet of depth 18 or 50, with its parameter names and initialization, so that its weights load.
    Images of up to 64x64 get the stem of the paper's CIFAR networks (a 3x3 convolution of stride 1, no max-pooling).
    The last stage has 1/32 of the image's side (1/8 with the small stem). If that is a single pixel, as for 8x8,
    training needs batches of at least two images."""

    def __init__(self, depth: int, num_classes: int, in_channels: int, image_size: int) -> None:
        """Build and initialize the network; ``image_size`` is from 8 to 224, all else raises a ``ValueError``."""
        super().__init__()
        require_positive(num_classes=num_classes, in_channels=in_channels)
        if depth not in (18, 50):
            raise ValueError(f"depth must be 18 or 50, got {depth}")
        if not 8 <= image_size <= 224:
            raise ValueError(f"image_size must be from 8 to 224, got {image_size}")
        small = image_size <= 64
        kernel, stride = (3, 1) if small else (7, 2)
        self.conv1 = nn.Conv2d(in_channels, 64, kernel, stride, padding=kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(kernel_size=3, stride=2, padding=1)

        block: Block = BasicBlock if depth == 18 else Bottleneck
        num_blocks = (2, 2, 2, 2) if depth == 18 else (3, 4, 6, 3)
        self.layer1 = _stage(block, 64, 64, num_blocks[0], stride=1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, num_blocks[1], stride=2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, num_blocks[2], stride=2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, num_blocks[3], stride=2)
        self.fc = nn.Linear(512 * block.expansion, num_classes)

        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @property
    def blocks(self) -> list[nn.Module]:
        return [block for stage in (self.layer1, self.layer2, self.layer3, self.layer4) for block in stage]

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, in_channels, H, W) to logits (B, num_classes)."""
        x = self.maxpool(F.relu(self.bn1(self.conv1(images)), inplace=True))
        for block in self.blocks:
            x = self.run(block, x)
        logits: Tensor = self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


def _stage(block: Block, in_channels: int, channels: int, num_blocks: int, stride: int) -> nn.Sequential:
    """Build ``num_blocks`` residual blocks; the first changes the resolution and the number of channels."""
    blocks = [block(in_channels, channels, stride)]
    blocks += [block(channels * block.expansion, channels, 1) for _ in range(num_blocks - 1)]
    return nn.Sequential(*blocks)
