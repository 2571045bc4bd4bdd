"""The convolutional networks at sizes that suit a test, by name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

import graphdnn as gd
from benchmarks.torch_peers import Convolutional, MobileNetV3, ResNet50, UNet, UNetBlock
from examples.models import mobilenet, resnet, unet


@dataclass(frozen=True)
class Network:
    """`planned` are batch and size as an H200 is planned for, `small` as numpy computes them in little time."""

    draw: Callable[..., dict[str, np.ndarray]]
    build: Callable[..., gd.Graph]
    twin: type[Convolutional]
    planned: tuple[int, int]
    small: tuple[int, int]
    channels: int = 3

    @cached_property
    def parameters(self) -> dict[str, np.ndarray]:
        return self.draw(seed=0)

    def graph(self, batch: int | None = None, is_channels_last: bool = False) -> gd.Graph:
        """In float16, at the planned size."""
        return self.build(self.parameters, batch or self.planned[0], gd.float16, self.planned[1], is_channels_last)

    def report(self, batch: int | None = None, is_channels_last: bool = False) -> gd.CompileReport:
        return gd.compile(self.graph(batch, is_channels_last), target=gd.Target.named("h200")).report


NETWORKS = {
    "resnet50": Network(resnet.random_parameters, resnet.build, ResNet50, (32, 224), (2, 96)),
    "mobilenet": Network(mobilenet.random_parameters, mobilenet.build, MobileNetV3, (32, 224), (1, 64)),
    "u_net": Network(unet.random_parameters, unet.build, UNet, (4, 256), (1, 32)),
    "u_net_block": Network(unet.random_block_parameters, unet.build_block, UNetBlock, (8, 128), (2, 12), 128),
}
