"""Q-learning from recorded steps, with a target network that follows (Mnih et al. 2015; Lillicrap et al. 2016)."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from zoo import OneLoss


class Recorded(Dataset):
    """Steps of a pendulum pushed at random: state (3,), action, reward, next state (3,), and whether it ended there."""

    def __init__(self, num_items, seed):
        generator = torch.Generator().manual_seed(seed)
        angle = 6.28 * torch.rand(num_items, generator=generator)
        speed = 4 * torch.rand(num_items, generator=generator) - 2
        actions = torch.randint(3, (num_items,), generator=generator)
        faster = speed + 0.05 * (15 * torch.sin(angle) + 3 * (actions - 1))
        further = angle + 0.05 * faster
        self.columns = {
            "state": torch.stack([torch.cos(angle), torch.sin(angle), speed], dim=1),
            "action": actions,
            "reward": torch.cos(further) - 0.1 * faster.square(),
            "next_state": torch.stack([torch.cos(further), torch.sin(further), faster], dim=1),
            "ended": (faster.abs() > 2.5).float(),
        }

    def __len__(self):
        return len(self.columns["action"])

    def __getitem__(self, item):
        return {name: values[item] for name, values in self.columns.items()}


class QNet(nn.Module):
    """Values (B, 3) of the actions in states (B, 3), by a net and by the one that follows it."""

    def __init__(self, width=64):
        super().__init__()
        layers = (nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))
        self.online = nn.Sequential(*layers)
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, states: Tensor) -> Tensor:
        return self.online(states)


class QLearning(OneLoss):
    """The Huber loss between values and those that the target network expects; the target follows after each step."""

    def loss(self, model: QNet, batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            ahead = model.target(batch["next_state"]).max(1).values
            wanted = batch["reward"] + 0.97 * (1 - batch["ended"]) * ahead
        values = model(batch["state"]).gather(1, batch["action"][:, None])[:, 0]
        return F.smooth_l1_loss(values, wanted)

    def after_step(self, model: QNet) -> None:
        for follower, parameter in zip(model.target.parameters(), model.online.parameters(), strict=True):
            follower.lerp_(parameter, 0.05)
