"""What a region is known by: all that decides which plans serve it, and nothing else."""

from collections.abc import Callable

import pytest

import graphdnn as gd
from graphdnn.ir.graph import Graph
from graphdnn.ir.region import Region


def key(graph: Graph, *names: str) -> str:
    """The key of the nodes of these names, of all where there are none."""
    return Region.of(graph, [n for n in graph.nodes if not names or n.name in names]).key


def chain(
    shape: tuple[int, ...] = (4, 6),
    dtype: gd.DType = gd.float16,
    strides: tuple[int, ...] | None = None,
    least: float = 0.0,
    factor: float = 2.0,
    names: tuple[str, str, str] = ("x", "scaled", "y"),
    leaving: bool = False,
) -> Graph:
    """A product and a clip, with the result of the product leaving the region or not."""
    x, scaled, y = names
    g = gd.GraphBuilder(f"chain of {x}")
    product = g.mul(g.input(x, shape, dtype, strides=strides), factor, name=scaled)
    outputs = {y: g.clip(product, min=least, max=9.0, name=y)}
    return g.build({**outputs, **({scaled: product} if leaving else {})})


OTHERS: dict[str, Callable[[], Graph]] = {
    "shape": lambda: chain((4, 8)),
    "shape of as many elements": lambda: chain((6, 4)),
    "type": lambda: chain(dtype=gd.bfloat16),
    "strides": lambda: chain(strides=(1, 4)),
    "strides with gaps": lambda: chain(strides=(8, 1)),
    "attribute": lambda: chain(least=-1.0),
    "number": lambda: chain(factor=3.0),
    "results that leave": lambda: chain(leaving=True),
}


@pytest.mark.parametrize("what", OTHERS)
def test_whatever_decides_about_plans_is_in_the_key(what: str) -> None:
    assert key(OTHERS[what]()) != key(chain())


def test_names_and_strides_of_axes_of_one_element_are_not() -> None:
    assert key(chain(names=("a", "b", "c"))) == key(chain())
    assert key(chain((1, 6), strides=(77, 1))) == key(chain((1, 6)))


def sliced(start: int, dtype: gd.DType = gd.float16) -> str:
    """The key of a product with 16 elements that start so many elements into memory."""
    g = gd.GraphBuilder("sliced")
    part = g.slice(g.input("x", (80,), dtype), (start,), (start + 16,), name="part")
    return key(g.build({"y": g.mul(part, g.input("w", (16,), dtype), name="y")}), "y")


def test_where_an_input_may_start_is_in_the_key_up_to_sixteen_bytes() -> None:
    starts = {start: sliced(start) for start in (0, 1, 2, 3, 4, 8, 16)}
    assert starts[0] == starts[8] == starts[16]
    assert starts[1] == starts[3]
    assert len(set(starts.values())) == 4
    assert sliced(4, gd.float32) == sliced(0, gd.float32) != sliced(1, gd.float32)
