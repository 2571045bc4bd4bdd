"""The arena of whole models, planned for an H200: within a twentieth of the least that their lifetimes allow."""

from collections.abc import Callable

import numpy as np
import pytest

import graphdnn as gd
from examples.models import bert, llama
from graphdnn.compiler import Problem, Selector, fitted
from graphdnn.engines.contract import MEMORY_ALIGNMENT
from graphdnn.engines.manifest import engines_for
from graphdnn.runtime.memory import aligned
from graphdnn.runtime.schedule import Schedule, Step, schedule
from tests.models.convolutional import NETWORKS


def numbered(shapes: dict[str, tuple[int, ...]], dtype: gd.DType, first: int = 1) -> dict[str, np.ndarray]:
    """Weights that differ from one another; no number is computed."""
    return {name: np.full(shape, first + i, dtype.numpy) for i, (name, shape) in enumerate(shapes.items())}


def encoder(batch: int, tokens: int, config: bert.Config) -> gd.Graph:
    """Layers of BERT one behind the other."""
    tiny = bert.random_layer_weights(0, bert.Config(hidden=8, heads=1, inner=32), gd.float16)
    size = {8: config.hidden, 32: config.inner}
    shapes = {name: tuple(size[n] for n in array.shape) for name, array in tiny.items()}
    g = gd.GraphBuilder("encoder")
    x = g.input("x", (batch, tokens, config.hidden), gd.float16)
    for layer in range(config.layers):
        named = {f"{layer}.{name}": shape for name, shape in shapes.items()}
        x = bert.encoder_layer(g, x, None, numbered(named, gd.float16, 1 + layer * len(named)), str(layer), config)
    return g.build({"y": x})


def llama_layer() -> gd.Graph:
    """A quarter as wide as Llama-3-8B's: the arena has the same shape, and weights are made in no time."""
    config = llama.Config(hidden=1024, heads=8, kv_heads=2, inner=3584)
    return llama.layer(numbered(llama.shapes(config), gd.bfloat16), 1, 4096, config, gd.bfloat16)


MINILM = bert.Config(hidden=384, heads=12, layers=6, inner=1536)
LARGE = bert.Config(hidden=1024, heads=16, layers=6, inner=4096)
MODELS: dict[str, Callable[[], gd.Graph]] = {
    "resnet50 b1": lambda: NETWORKS["resnet50"].graph(1),
    "resnet50 b32": lambda: NETWORKS["resnet50"].graph(32),
    "mobilenet b32": lambda: NETWORKS["mobilenet"].graph(32),
    "u_net b4": lambda: NETWORKS["u_net"].graph(4),
    "u_net_block b8": lambda: NETWORKS["u_net_block"].graph(8),
    "minilm 8x128": lambda: encoder(8, 128, MINILM),
    "bert-large 16x512": lambda: encoder(16, 512, LARGE),
    "llama 1x4096": llama_layer,
}


@pytest.fixture(scope="module", params=MODELS)
def placed(request: pytest.FixtureRequest) -> Schedule:
    graph, target, options = MODELS[request.param](), gd.Target.named("h200"), gd.CompileOptions()
    selector = Selector(engines_for(target.kind, ()), target, options.policy())
    return fitted(Problem(graph, selector, None, options))[1]


def test_the_arena_is_within_a_twentieth_of_the_bound(placed: Schedule) -> None:
    assert 0 < placed.bound_bytes <= placed.arena_bytes <= 1.05 * placed.bound_bytes


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_so_it_is_with_scratch_memory(placed: Schedule, share: float, rng: np.random.Generator) -> None:
    """As plans of libraries ask for it: some of the steps, up to a part of the largest value, once above it."""
    unit = int(share * placed.bound_bytes)
    scratch = [int(rng.integers(1, unit)) if rng.random() < 0.4 else 0 for _ in placed.steps]
    steps = [Step(s.region, None, n, s.offered) for s, n in zip(placed.steps, scratch, strict=True)]
    found = schedule(placed.graph, steps)
    assert found.arena_bytes <= 1.05 * found.bound_bytes
    assert found.bound_bytes >= max(scratch)
    assert all(offset % MEMORY_ALIGNMENT == 0 for offset in found.workspaces)


def test_what_is_left_of_the_sum_of_all_values(placed: Schedule) -> None:
    """Memory is used again: a model of more than one layer takes a small part of what its values take together."""
    made = [v for s in placed.steps for v in s.region.outputs if placed.places[v].space == "arena"]
    together = sum(aligned(v.type.span_bytes) for v in made)
    assert len(made) < 16 or placed.arena_bytes < together / 2
