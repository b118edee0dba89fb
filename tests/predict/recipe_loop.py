"""The PyTorch AMP recipe as it stood with torch 1.11, under the conditions of its published memory figures.

https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html (M. Carilli): 50 batches resident on the device,
three linear layers of 4096, SGD, gradients set to zero instead of None. What counts is what its names keep alive:
`output` and `loss` outlive a step, and the first loss of the second part is computed while the graph of the first
part's last loss still holds the first model and its gradients.
"""

import torch
from torch import nn

BATCH_SIZE, WIDTH, NUM_LAYERS, NUM_BATCHES = 512, 4096, 3, 50


def recipe(mark, num_steps=NUM_BATCHES):
    """Runs both parts on the CPU; `mark` is called where each begins to be measured and where it ends."""
    data = [torch.randn(BATCH_SIZE, WIDTH) for _ in range(NUM_BATCHES)]
    targets = [torch.randn(BATCH_SIZE, WIDTH) for _ in range(NUM_BATCHES)]
    loss_fn = nn.MSELoss()

    net, opt = make_model()
    mark()
    for input, target in [*zip(data, targets, strict=True)][:num_steps]:
        output = net(input)
        loss = loss_fn(output, target)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=False)
    mark()

    net, opt = make_model()
    scaler = torch.amp.GradScaler("cpu")
    mark()
    for input, target in [*zip(data, targets, strict=True)][:num_steps]:
        with torch.autocast("cpu", torch.float16):
            output = net(input)
            loss = loss_fn(output, target)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=False)
    mark()


def make_model():
    layers = [layer for _ in range(NUM_LAYERS - 1) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    net = nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH))
    return net, torch.optim.SGD(net.parameters(), lr=0.001)
