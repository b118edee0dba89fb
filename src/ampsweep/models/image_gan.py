"""An image generator and a discriminator in one model."""

import torch
from torch import Tensor, nn

from ampsweep.argument_checks import require_positive


class ImageGAN(nn.Module):
    """Two convolutional networks, after A. Radford et al. 2016 (DCGAN, arXiv:1511.06434), with two stages each.
    ``generator`` maps noise to images, ``discriminator`` scores images. The discriminator has no batch normalization,
    so that the score of an image depends only on that image, as a gradient penalty requires."""

    def __init__(self, image_size: int, in_channels: int, latent_size: int, hidden_size: int) -> None:
        """Build both networks; raise a ``ValueError`` for sizes below 1 or images that cannot be halved twice."""
        super().__init__()
        require_positive(
            image_size=image_size, in_channels=in_channels, latent_size=latent_size, hidden_size=hidden_size
        )
        if image_size % 4:
            raise ValueError(f"image_size must be a multiple of 4, got {image_size}")
        self.latent_size = latent_size
        small, wide = image_size // 4, 2 * hidden_size
        self.generator = nn.Sequential(
            nn.Linear(latent_size, wide * small**2),
            nn.Unflatten(1, (wide, small, small)),
            nn.BatchNorm2d(wide),
            nn.ReLU(),
            nn.ConvTranspose2d(wide, hidden_size, 4, stride=2, padding=1),
            nn.BatchNorm2d(hidden_size),
            nn.ReLU(),
            nn.ConvTranspose2d(hidden_size, in_channels, 4, stride=2, padding=1),
            nn.Sigmoid(),
        )
        self.discriminator = nn.Sequential(
            nn.Conv2d(in_channels, hidden_size, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(hidden_size, wide, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(wide * small**2, 1),
        )

    def forward(self, noise: Tensor) -> Tensor:
        """Map noise (B, latent_size) to images (B, in_channels, image_size, image_size) with values in [0, 1]."""
        images: Tensor = self.generator(noise)
        return images

    def noise(self, like: Tensor) -> Tensor:
        """Draw standard normal noise (B, latent_size) with the batch size, device and dtype of ``like``."""
        return torch.randn(len(like), self.latent_size, device=like.device, dtype=like.dtype)
