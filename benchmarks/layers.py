"""Whole networks and layers, one CUDA graph a call, beside PyTorch eager and Inductor captured the same way.

Both sides read the same tensors on the device (images channels-last), write their own outputs, and are timed in turns
with a cold cache.  Run from the repository's root: `python -m benchmarks.layers --rows resnet50`.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import graphdnn as gd
from benchmarks.comparison import (
    arguments,
    attempt,
    captured_peers,
    empty_output,
    graph_floor_us,
    largest_error,
    plans,
    random_tensor,
    run_suite,
)
from benchmarks.results import Row
from benchmarks.timing import Captured, Ceilings, Machine, Run, interleaved, measured_ceilings, medians
from benchmarks.torch_peers import (
    DTYPES,
    BertLayer,
    Convolutional,
    LlamaLayer,
    MobileNetV3,
    ResNet50,
    UNet,
    UNetBlock,
    inductor,
)
from examples.models import bert, llama, mobilenet, resnet, unet
from examples.models.convolutional import half_rounded

CHUNK = 32
"""Images or sentences of one float64 reference call."""

ATTENTION_BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)


@dataclass(frozen=True)
class Case:
    """One network: its graph, its PyTorch twin in some type, and the shape of its input "x"."""

    shape: tuple[int, ...]
    dtype: gd.DType
    graph: Callable[[], gd.Graph]
    twin: Callable[[str, torch.dtype], torch.nn.Module]
    channels_last: bool = False
    attention: Mapping[str, Any] | None = None
    """Heads, key heads, head dimension and causality, for choosing PyTorch's fastest attention."""


@dataclass(frozen=True)
class ImageNetwork:
    """A convolutional network of examples.models: how its parameters are drawn, its graph is built, and its twin."""

    draw: Callable[[int], dict[str, np.ndarray]]
    build: Callable[..., gd.Graph]
    twin: type[Convolutional]
    channels: int = 3

    @cached_property
    def parameters(self) -> dict[str, np.ndarray]:
        """Rounded to float16, batch norms too, so that both sides compute the same function."""
        return half_rounded(self.draw(0))

    def case(self, batch: int, size: int = 224) -> Case:
        return Case(
            (batch, self.channels, size, size),
            gd.float16,
            lambda: self.build(self.parameters, batch, gd.float16, size, is_channels_last=True),
            lambda d, t: self.twin(self.parameters, d, t),
            channels_last=True,
        )


RESNET50 = ImageNetwork(resnet.random_parameters, resnet.build, ResNet50)
MOBILENET_V3 = ImageNetwork(mobilenet.random_parameters, mobilenet.build, MobileNetV3)
U_NET = ImageNetwork(unet.random_parameters, unet.build, UNet)
U_NET_BLOCK = ImageNetwork(unet.random_block_parameters, unet.build_block, UNetBlock, unet.BLOCK_WIDTHS[0])


def bert_case(batch: int, tokens: int, config: bert.Config = bert.LARGE) -> Case:
    @cache
    def weights() -> dict[str, Any]:
        return bert.random_layer_weights(0, config, gd.float16)

    return Case(
        (batch, tokens, config.hidden),
        gd.float16,
        lambda: bert.bert_layer(weights(), batch, tokens, config, gd.float16),
        lambda d, t: BertLayer(weights(), config, d, t),
        attention={"heads": config.heads, "kv_heads": config.heads, "head_dim": config.hidden // config.heads},
    )


def llama_case(batch: int, tokens: int, config: llama.Config | None = None) -> Case:
    sizes = config or llama.Config()

    @cache
    def weights() -> dict[str, Any]:
        return llama.random_weights(0, sizes, gd.bfloat16)

    table = llama.rotary_table(tokens, sizes, gd.bfloat16)
    return Case(
        (batch, tokens, sizes.hidden),
        gd.bfloat16,
        lambda: llama.layer(weights(), batch, tokens, sizes, gd.bfloat16),
        lambda d, t: LlamaLayer(weights(), table, sizes, d, t),
        attention={"heads": sizes.heads, "kv_heads": sizes.kv_heads, "head_dim": sizes.head_dim, "causal": True},
    )


CASES: dict[str, Callable[[], Case]] = {
    "resnet50 b1": lambda: RESNET50.case(1),
    "resnet50 b32": lambda: RESNET50.case(32),
    "resnet50 b256": lambda: RESNET50.case(256),
    "bert-large 1x128": lambda: bert_case(1, 128),
    "bert-large 16x512": lambda: bert_case(16, 512),
    "llama-3-8b 1x4096": lambda: llama_case(1, 4096),
    "mobilenetv3-large b32": lambda: MOBILENET_V3.case(32),
    "unet block 8x128x128x128": lambda: U_NET_BLOCK.case(8, 128),
}


@contextmanager
def fast_convolutions() -> Iterator[None]:
    """PyTorch tries every convolution algorithm and keeps the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def fastest_attention(machine: Machine, case: Case, failures: dict[str, str]) -> SDPBackend | None:
    """The backend of PyTorch's attention that is fastest at this size; None where there is no attention."""
    if case.attention is None:
        return None
    batch, tokens, _ = case.shape
    spec = case.attention
    q, k, v = (
        random_tensor(
            (batch, tokens, heads, spec["head_dim"]), DTYPES[case.dtype.name], False, i, machine.device
        ).transpose(1, 2)
        for i, heads in enumerate((spec["heads"], spec["kv_heads"], spec["kv_heads"]))
    )
    settings = {"is_causal": spec.get("causal", False), "enable_gqa": spec["heads"] != spec["kv_heads"]}

    def capture(backend: SDPBackend) -> Captured:
        with sdpa_kernel(backend):
            return machine.capture(lambda: functional.scaled_dot_product_attention(q, k, v, **settings))

    runs = {b: attempt(failures, b.name, lambda b=b: capture(b)) for b in ATTENTION_BACKENDS}
    there = {b.name: run for b, run in runs.items() if run is not None}
    if not there:
        return None
    times = medians(interleaved(there, machine.cold_clock(), samples=15))
    return SDPBackend.__members__[min(times, key=lambda name: times[name])]


def ways_to_run(
    machine: Machine, case: Case, x: torch.Tensor, skip_inductor: bool
) -> dict[str, Callable[[], Callable[..., Any]]]:
    """PyTorch's ways to run the network, each made when it is called."""
    module = case.twin(machine.device, DTYPES[case.dtype.name])
    ways: dict[str, Callable[[], Callable[..., Any]]] = {"eager": lambda: module}
    if not skip_inductor:
        ways["inductor"] = lambda: inductor(module, x)
        ways["inductor_freezing"] = lambda: inductor(module, x, freezing=True)
    return ways


def reference(case: Case, x: torch.Tensor) -> torch.Tensor:
    """The twin in float64, some images or sentences at a time."""
    twin = case.twin(str(x.device), torch.float64)
    with torch.inference_mode():
        return torch.cat([twin(part.double()) for part in x.split(CHUNK)])


def measure(machine: Machine, case: Case, name: str, ceilings: Ceilings, samples: int, skip_inductor: bool) -> Row:
    """One row: compiles our side, captures the peers, checks both against float64, and times them in turns."""
    x = random_tensor(case.shape, DTYPES[case.dtype.name], case.channels_last, 1, machine.device)
    graph = case.graph()
    exe = gd.compile(graph, target=machine.device)
    output = empty_output(graph, machine.device)
    ours = exe.bind({"x": x}, {"y": output})
    ours()
    machine.synchronize()
    expected = reference(case, x)
    error = largest_error(output, expected)

    failures: dict[str, str] = {}
    backend = fastest_attention(machine, case, failures)
    with fast_convolutions(), sdpa_kernel(backend) if backend else nullcontext():
        ways = ways_to_run(machine, case, x, skip_inductor)
        peers = captured_peers(machine, ways, lambda run: run(x), failures)
    for peer in peers.values():
        peer()
    errors = {n: largest_error(p.results, expected) for n, p in peers.items()}
    contenders: dict[str, Run] = {"ours": ours, **peers}
    cold = medians(interleaved(contenders, machine.cold_clock(), samples))
    warm = medians(interleaved(contenders, machine.warm_clock(), max(samples // 4, 5)))
    ours_us = cold.pop("ours")
    best = min(cold, key=lambda n: cold[n], default=None)
    settings = {
        "dtype": case.dtype.name,
        "layout": "channels-last" if case.channels_last else "row-major",
        "attention of peers": backend.name if backend else None,
        "warm_us": warm,
        "kernels": exe.report.kernel_count,
        "peer_errors": errors,
        "failures": failures,
        "regions": plans(exe.report),
    }
    return Row(
        name=name,
        ours_us=ours_us,
        peers=cold,
        floor_us=graph_floor_us(graph, ceilings),
        error=error,
        peer_error=errors.get(best) if best else None,
        samples=samples,
        estimated_us=exe.report.estimated_us,
        settings=settings,
    )


def main(given: list[str] | None = None) -> int:
    options = arguments("layers", __doc__.splitlines()[0]).parse_args(given)
    machine, ceilings = Machine(), measured_ceilings()
    print(ceilings)

    def row(name: str) -> Row:
        found = measure(machine, CASES[name](), name, ceilings, options.samples, options.skip_inductor)
        torch._dynamo.reset()
        gc.collect()
        return found

    return run_suite("layers", options, CASES, row)


if __name__ == "__main__":
    sys.exit(main())
