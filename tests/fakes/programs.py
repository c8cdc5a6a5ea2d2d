"""Programs to profile. Each function prepares a program and returns the function to profile."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """A bottleneck block of ResNet-50."""

    def __init__(self, before, middle, stride):
        super().__init__()

        def unit(a, b, size, step):
            return [nn.Conv2d(a, b, size, step, size // 2, bias=False), nn.BatchNorm2d(b)]

        self.body = nn.Sequential(
            *unit(before, middle, 1, 1),
            nn.ReLU(inplace=True),
            *unit(middle, middle, 3, stride),
            nn.ReLU(inplace=True),
            *unit(middle, 4 * middle, 1, 1),
        )
        keep_shape = stride == 1 and before == 4 * middle
        self.skip = nn.Identity() if keep_shape else nn.Sequential(*unit(before, 4 * middle, 1, stride))

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))


def resnet50():
    """Return torchvision's ResNet-50 if torchvision works with this torch, otherwise a model with the same layers."""
    try:
        from torchvision.models import resnet50 as torchvision_resnet50

        return torchvision_resnet50()
    except (ImportError, RuntimeError):  # torchvision was built for another version of PyTorch
        pass
    return residual_network(64, (3, 4, 6, 3))


def residual_network(width, counts):
    """Return a model like ResNet-50, with this number of channels after the first layer and these numbers of blocks."""
    first = nn.Conv2d(3, width, 7, 2, 3, bias=False)
    layers = [first, nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = width
    for stage, count in enumerate(counts):
        for number in range(count):
            layers.append(Block(channels, width << stage, 2 if stage and number == 0 else 1))
            channels = 4 * width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def example(steps=2, side=32, model=None):
    """Prepare the example from the article "Understanding GPU Memory 1" on PyTorch's blog."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = (model or resnet50()).to(device=device)
    inputs = torch.randn(2, 3, side, side, device=device)
    labels = torch.rand_like(model(inputs))
    loss_function, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def run():
        for _ in range(steps):
            loss = loss_function(model(inputs), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return run


def adam():
    model = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.LayerNorm(40), nn.Linear(40, 5))
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(8, 30)

    def run():
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    return run


def functional():
    """Prepare training without a module or an optimizer: only the data flow shows which tensors are parameters."""
    w, b = torch.randn(20, 10, requires_grad=True), torch.zeros(10, requires_grad=True)
    x = torch.randn(6, 20)

    def run():
        for _ in range(2):
            (x @ w + b).relu().sum().backward()
            with torch.no_grad():
                for parameter in (w, b):
                    parameter.sub_(0.1 * parameter.grad)
                    parameter.grad = None

    return run


class OverwritingFunction(torch.autograd.Function):
    """A function whose backward pass overwrites an activation."""

    @staticmethod
    def forward(ctx, x):
        ctx.saved = x.detach()
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        ctx.saved.mul_(2)
        return gradient * ctx.saved


def overwritten_activations():
    """Prepare training in which the backward pass changes activations and inputs."""
    w = torch.randn(20, 10, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    x, weights = torch.randn(6, 20), torch.randn(6, 10)

    def run():
        for _ in range(2):
            y = OverwritingFunction.apply(x @ w) * weights
            (y + y).backward(weights)  # an addition passes its gradient on unchanged
            optimizer.step()
            optimizer.zero_grad()
            del y

    return run


def inference():
    model = nn.Sequential(nn.Conv1d(4, 6, 3), nn.GELU(), nn.Flatten(), nn.Linear(6 * 14, 3))
    x = torch.randn(5, 4, 16)

    def run():
        with torch.no_grad():
            for _ in range(2):
                model(x).softmax(-1)

    return run


def unusual_operations():
    """Prepare lists, views, in-place operations, resizes, sparse and complex tensors, and frees of earlier tensors."""
    old = [torch.ones(1000 + i) for i in range(5)]

    def run():
        old.pop()
        parts = torch.cat([tensor.mul(2) for tensor in old]).split(100)
        parts[0].add_(parts[1])
        torch.stack(parts[:3]).unbind()
        sparse = torch.eye(20).to_sparse()
        (sparse @ torch.ones(20, 4)).t().contiguous()
        torch.fft.fft(torch.randn(64)).abs().sort()
        torch.empty(0).resize_(500).zero_()
        old.clear()
        del parts

    return run


def checkpointed():
    from torch.utils.checkpoint import checkpoint

    layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(4))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)

    def run():
        x = torch.randn(9, 16)
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False)
        x.sum().backward()
        optimizer.step()

    return run


def recurrent():
    model = nn.LSTM(8, 12, num_layers=2)
    x = torch.randn(6, 3, 8)

    def run():
        model(x)[0].sum().backward()

    return run


PROGRAMS = {
    program.__name__: program
    for program in (adam, checkpointed, functional, inference, unusual_operations, recurrent, overwritten_activations)
}
