"""What one writes by hand: Hydra, wandb and a loop."""

from dataclasses import dataclass

import hydra
import torch
import torch.nn.functional as F
import wandb
from hydra.core.config_store import ConfigStore
from startup_stamps import NUM_STEPS, StampedNet
from workload import SIZES, Batches


@dataclass
class Config:
    lr: float = 1e-3
    size: str = "small"


ConfigStore.instance().store(name="config", node=Config)


@hydra.main(config_path=None, config_name="config", version_base="1.3")
def main(config: Config) -> None:
    size = SIZES[config.size]
    run = wandb.init(config=dict(config))
    model = StampedNet(size.features, size.hidden)
    data = Batches(size.features, size.batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, fused=True)
    for index in range(NUM_STEPS):
        inputs, targets = data.train_batch(index)
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if index % 10 == 9:
            run.log({"train/loss": loss.item()})
    run.finish()


if __name__ == "__main__":
    main()
