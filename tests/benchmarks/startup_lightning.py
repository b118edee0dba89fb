"""The same with Lightning's Trainer."""

from dataclasses import dataclass

import hydra
import lightning
import torch
import torch.nn.functional as F
from hydra.core.config_store import ConfigStore
from lightning.pytorch.loggers import WandbLogger
from loops import Stream
from startup_stamps import NUM_STEPS, StampedNet
from torch import Tensor
from workload import SIZES, Batches, Size


@dataclass
class Config:
    lr: float = 1e-3
    size: str = "small"


ConfigStore.instance().store(name="config", node=Config)


class Module(lightning.LightningModule):
    def __init__(self, size: Size, lr: float) -> None:
        super().__init__()
        self.model, self.lr = StampedNet(size.features, size.hidden), lr

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        inputs, targets = batch
        loss = F.mse_loss(self.model(inputs), targets)
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


@hydra.main(config_path=None, config_name="config", version_base="1.3")
def main(config: Config) -> None:
    size = SIZES[config.size]
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=NUM_STEPS,
        logger=WandbLogger(offline=True),
        log_every_n_steps=10,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(size, config.lr), Stream(Batches(size.features, size.batch_size)))


if __name__ == "__main__":
    main()
