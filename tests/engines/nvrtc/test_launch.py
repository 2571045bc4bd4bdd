"""Programmatic launches: which kernels, with which configuration, and that every kernel waits as they need it."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.engines.nvrtc.engine import family_of
from graphdnn.engines.nvrtc.launch import LaunchArguments, overlapped_blocks, programmatic
from graphdnn.ir.region import Region
from tests.ir.samples import SAMPLES, Sample

H200 = gd.Target.named("h200")
KERNEL = re.compile(r'extern "C" __global__ void [^{]*\{\s*(\w+)\(\);')


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_every_kernel_begins_with_the_wait(sample: Sample, rng: np.random.Generator) -> None:
    graph = sample.graph(rng)
    for node in graph.nodes:
        family = family_of(Region(graph, (node,)))
        if isinstance(family, Decline):
            continue
        for kernel in family.generate(Region(graph, (node,)), H200).kernels:
            assert KERNEL.findall(kernel.source) == ["wait_for_predecessors"]
            assert kernel.source.count("__global__") == 1


def test_two_blocks_a_multiprocessor_at_most_are_launched_programmatically() -> None:
    assert overlapped_blocks(H200) == 264
    assert overlapped_blocks(dataclasses.replace(H200, compute_capability=(8, 0))) == 0


def test_the_configuration_says_what_a_plain_launch_would() -> None:
    config = programmatic((2, 3, 4, 32, 5, 6, 7000))
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (2, 3, 4)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ, config.sharedMemBytes) == (32, 5, 6, 7000)
    (attribute,) = config.attrs
    assert attribute.id.name == "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"
    assert attribute.value.programmaticStreamSerializationAllowed == 1
    assert LaunchArguments(1, (1,) * 7, is_programmatic=False).config is None
