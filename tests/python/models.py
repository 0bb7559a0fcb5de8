"""Small training runs that several test files use: real digits through the usual layers, in about a tenth of a second."""

import functools

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


@functools.cache
def digits():
    """Scikit-learn's scanned digits: images (1797, 1, 8, 8) in [0, 1], and their digits."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).div_(16).unsqueeze(1)
    return images, torch.tensor(data.target)


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3, padding=1)
        self.conv2 = nn.Conv2d(6, 16, 3)
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 1)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Rows(nn.Module):
    """An LSTM that reads an image row by row."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 16, 2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.lstm(x.squeeze(1))[0][:, -1])


class Attention(nn.Module):
    """A transformer layer over the rows of an image."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.layer(self.embed(x.squeeze(1))).mean(1))


class Residual(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.short = nn.Sequential()
        if stride > 1:
            self.short = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))) + self.short(x))


class ResNet(nn.Sequential):
    """ResNet-18's shape, two blocks per width, for small images."""

    def __init__(self):
        widths = [8, 8, 16, 16, 32, 32]
        blocks = [Residual(a, b, 1 + (a < b)) for a, b in zip([8, *widths], widths, strict=False)]
        super().__init__(
            nn.Conv2d(1, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            *blocks,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, 10),
        )


MODELS = {"lenet": LeNet, "lstm": Rows, "transformer": Attention}
OPTIMIZERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adam": functools.partial(torch.optim.Adam, lr=1e-2, foreach=True),
}


def _trouble_of_lstm_under_autocast():
    """Why torch itself cannot run an LSTM under autocast on this processor; "" where it can."""
    try:
        with torch.random.fork_rng(devices=[]), torch.autocast("cpu", torch.bfloat16):
            nn.LSTM(2, 2)(torch.ones(1, 1, 2))
    except RuntimeError as error:  # oneDNN has the bfloat16 kernel for processors with AVX-512 only
        return str(error)
    return ""


TROUBLE_OF_LSTM_UNDER_AUTOCAST = _trouble_of_lstm_under_autocast()


def train(model="lenet", optimizer="sgd", autocast=False, steps=3, batch=16, after_step=lambda: None):
    """Trains from a fixed seed; returns all that a user could see of it: losses, gradients, parameters, random state."""
    if autocast and model == "lstm" and TROUBLE_OF_LSTM_UNDER_AUTOCAST:
        pytest.skip(f"torch has no LSTM under autocast here: {TROUBLE_OF_LSTM_UNDER_AUTOCAST}")
    torch.manual_seed(7)
    images, labels = digits()
    network = MODELS[model]()
    method = OPTIMIZERS[optimizer](network.parameters())
    losses = []
    for step in range(steps):
        rows = slice(step * batch, (step + 1) * batch)
        method.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(network(images[rows]).float(), labels[rows])
        loss.backward()
        method.step()
        losses.append(loss.detach())
        after_step()
    seen = {f"loss {i}": loss for i, loss in enumerate(losses)}
    for name, parameter in network.named_parameters():
        seen[f"{name}"] = parameter.detach()
        seen[f"{name}.grad"] = parameter.grad
    for index, (_, state) in enumerate(sorted(method.state_dict()["state"].items())):
        seen.update(
            {f"state {index} {key}": torch.as_tensor(value) for key, value in state.items() if value is not None}
        )
    seen["random state"] = torch.get_rng_state()
    return seen


def different(results, other):
    """The names under which two results of train() are not the same bits."""
    assert results.keys() == other.keys()
    return [name for name in results if not same_bits(results[name], other[name])]


def same_bits(tensor, other):
    """Equal in dtype, shape, strides and every bit, so a NaN equals itself and 0.0 is not -0.0."""
    if (tensor.dtype, tensor.shape, tensor.stride()) != (other.dtype, other.shape, other.stride()):
        return False
    as_bytes = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (tensor, other)]
    return torch.equal(*as_bytes)
