"""The residual network of the gallery, in PyTorch: the same layers, dropout and weight decay."""

import problem

torch = problem.load('torch')
nn = torch.nn
CHANNELS = [16, 32, 48]
CLASSES = 10
WEIGHT_DECAY = 1e-4
DROPOUT = 0.5
MOMENTUM = 0.1  # how much of a batch the moving averages take in


def convolution(inputs, outputs, size=3, stride=1):
    """Returns a convolution without a bias that keeps height and width, up to its stride."""
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight)
    return layer


def normalized(channels):
    """Returns the layers that normalize by channel, and apply a ReLU."""
    return nn.Sequential(nn.BatchNorm2d(channels, eps=1e-3, momentum=MOMENTUM), nn.ReLU())


class Block(nn.Module):
    """Adds the result of two convolutions of the images to the images themselves."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self._first = normalized(inputs)
        self._shortcut = None if inputs == outputs else convolution(inputs, outputs, 1, stride)
        self._rest = nn.Sequential(convolution(inputs, outputs, 3, stride), normalized(outputs),
                                   convolution(outputs, outputs))

    def forward(self, images):
        """Returns [batch_size, channels, height / stride, width / stride] float32."""
        units = self._first(images)
        return (self._shortcut(units) if self._shortcut else images) + self._rest(units)


def network():
    """Returns the network, a `torch.nn.Module` of [batch_size, 784] float32."""
    sides = 28 // 2 ** (len(CHANNELS) - 1)
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)), convolution(1, CHANNELS[0]),
        *(Block(CHANNELS[max(i - 1, 0)], channels, 2 if i else 1)
          for i, channels in enumerate(CHANNELS)),
        normalized(CHANNELS[-1]), nn.Flatten(), nn.Dropout(DROPOUT),
        nn.Linear(CHANNELS[-1] * sides ** 2, CLASSES))


def parameters(module):
    """Returns the parameters of the network for an optimizer; only kernels have weight decay."""
    found = list(module.parameters())
    return [{'params': [parameter for parameter in found if parameter.dim() > 1],
             'weight_decay': WEIGHT_DECAY},
            {'params': [parameter for parameter in found if parameter.dim() == 1]}]
