"""Products of one left operand as one product: what it makes, what it costs, and what it leaves alone."""

import numpy as np
import pytest

import graphdnn as gd
from examples.models.bert import Config, bert_layer, random_layer_weights
from examples.models.llama import Config as LlamaConfig
from examples.models.llama import layer, random_weights
from graphdnn.engines.choose import Selector
from graphdnn.engines.manifest import engines_for
from graphdnn.engines.nvrtc.pointwise import plan_walk
from graphdnn.passes.canonicalize import drop_dead
from graphdnn.passes.fuse import propose
from graphdnn.passes.merge import MOST_PRODUCTS, merge_products
from graphdnn.passes.pipeline import prepare
from graphdnn.passes.sink import sink_views
from tests.numbers import TOLERANCE, relative_error
from tests.passes.graph_text import nodes
from tests.passes.random_graphs import (
    FAMILIES,
    Draw,
    assert_close,
    assert_same_meaning,
    finished,
    random_arrays,
    results,
)


def labels(graph):
    return [n.op.label for n in graph.nodes]


def kernels(pointwise=1.0, fused=1.0, merged=1.0):
    """Engines that take pointwise regions, one other op, and a product with pointwise work; each at a price."""

    def ask(region):
        products = [n for n in region.nodes if n.op.label == "matmul"]
        others = [n for n in region.nodes if n.op.label in ("bias", "add", "gelu", "silu", "mul", "sin")]
        if len(products) + len(others) < len(region.nodes):
            return 1.0 if len(region.nodes) == 1 else None
        if len(products) > 1:
            return None
        if not products:
            return pointwise
        return merged if products[0].result.type.shape[-1] > 24 else fused if others else 1.0

    return ask


class Branches:
    """A builder, one left operand (5, 7), and products of it under names a, b, c, ..."""

    def __init__(self, rng, dtype=gd.float64):
        self.g, self.rng, self.dtype = gd.GraphBuilder(), rng, dtype
        self.x = self.g.input("x", (5, 7), dtype)

    def constant(self, *shape):
        return self.g.constant(self.rng.normal(size=shape).astype(self.dtype.numpy))

    def product(self, name, columns=8, x=None):
        return self.g.matmul(self.x if x is None else x, self.constant(7, columns), name=name)

    def behind(self, value):
        """The value read by something that is no pointwise op, so that it is no output."""
        return self.g.softmax(value)

    def build(self, *values):
        return self.g.build({f"y{i}": self.behind(v) for i, v in enumerate(values)})


def checked(graph, rng, ask=None):
    """The merged graph, which means the same and does not change any more."""
    ask = ask or kernels()
    done = merge_products(graph, ask)
    assert_same_meaning(graph, done.graph, rng)
    assert merge_products(done.graph, ask).graph is done.graph
    return done


def test_weights_side_by_side(rng):
    b = Branches(rng)
    graph = b.build(b.product("q", 16), b.product("k"), b.product("v", 24))
    done = checked(graph, rng)
    lines = nodes(done.graph)
    assert lines[0] == "%q_2 = matmul(%x, %q_1) : f64[5x48] from q, k, v"
    assert lines[1].startswith("%q, %k, %v = split@q_3(%q_2) {sizes=(16, 8, 24), axis=1}")
    assert labels(done.graph) == ["matmul", "split", "softmax", "softmax", "softmax"]
    (weights,) = done.graph.payloads.values()
    np.testing.assert_array_equal(weights.array(), np.hstack([p.array() for p in graph.payloads.values()]))
    assert done.changes == ("q, k, v: one product with 48 columns; with what reads them 4.0 us instead of 6.0 us",)


def test_biases_join_and_lacking_ones_are_zero(rng):
    b = Branches(rng)
    first, third = b.constant(8), b.constant(1, 8)
    q = b.g.bias(b.product("q"), first, axis=-1)
    k, v = b.product("k"), b.g.add(third, b.product("v"))
    done = checked(b.build(q, k, v), rng)
    assert labels(done.graph) == ["matmul", "bias", "split", "softmax", "softmax", "softmax"]
    bias, split = done.graph.nodes[1:3]
    assert [v.name for v in split.results] == ["bias", "k", "add"], "slices are called what the user calls them"
    assert bias.origins == ("bias", "add")
    joined = done.graph.payloads[bias.operands[1].name].array()
    assert joined.shape == (24,)
    assert joined[:8].all()
    assert not joined[8:16].any()
    assert joined[16:].all()


@pytest.mark.parametrize("kind", ["scalar", "rows", "square", "run time", "wider", "twice read"])
def test_other_additions_stay_behind(kind, rng):
    b = Branches(rng)
    q = b.product("q")
    other = {
        "scalar": lambda: 0.5,
        "rows": lambda: b.constant(5, 1),
        "square": lambda: b.constant(5, 8),
        "run time": lambda: b.g.input("b", (8,), gd.float64),
        "wider": lambda: b.constant(2, 5, 8),
        "twice read": lambda: b.constant(8),
    }[kind]()
    values = [b.g.add(q, other), b.product("k")] + ([q] if kind == "twice read" else [])
    graph = b.build(*values)
    done = checked(graph, rng, kernels(fused=5.0))
    assert labels(done.graph)[:3] == ["matmul", "split", "add"]


def test_a_fused_epilogue_that_would_be_lost_counts(rng):
    """Two plain products for 2, one more with its GELU for 1; merged, the GELU is a kernel of its own."""

    def graph():
        b = Branches(np.random.default_rng(3))
        return b.build(b.product("q"), b.product("k"), b.g.gelu(b.product("f")))

    done = checked(graph(), rng, kernels(pointwise=0.5))
    assert labels(done.graph)[:3] == ["matmul", "split", "gelu"]
    done = checked(graph(), rng, kernels(pointwise=3.0))
    assert labels(done.graph)[:4] == ["matmul", "split", "matmul", "gelu"]
    assert done.changes[0].startswith("q, k: one product with 16 columns")


def test_refused_with_both_figures(rng):
    b = Branches(rng)
    graph = b.build(b.g.gelu(b.product("f", 16)), b.g.silu(b.product("g", 16)))
    done = checked(graph, rng, kernels(pointwise=3.0))
    assert done.graph is graph
    (refusal,) = done.refusals
    assert refusal.rule == "merge"
    assert refusal.nodes == ("f", "g")
    assert refusal.reason == ("as one product they and what reads them would take 9.0 us, apart they take 4.0 us")
    b = Branches(rng)
    graph = b.build(b.product("f", 16), b.product("g", 16))
    equal = merge_products(graph, kernels(merged=2.0))
    assert equal.graph is graph
    assert "4.0 us, apart they take 4.0 us" in equal.refusals[0].reason


def test_readers_that_no_engine_takes_with_strides(rng):
    b = Branches(rng)
    graph = b.build(b.product("q"), b.product("k"))

    def ask(region):
        dense = all(v.type.is_dense for v in region.inputs)
        return kernels()(region) if dense or region.pattern != "softmax" else None

    done = merge_products(graph, ask)
    assert done.graph is graph
    assert "would take more than any engine can do" in done.refusals[0].reason


@pytest.mark.parametrize("columns", [1, 7, 12, 33, 300])
def test_slices_are_aligned(columns, rng):
    b = Branches(rng)
    done = checked(b.build(b.product("q"), b.product("odd", columns), b.product("v")), rng)
    assert sorted(labels(done.graph)[:3]) == ["matmul", "matmul", "split"]
    (refusal,) = done.refusals
    assert refusal.nodes == ("odd",)
    assert f"matmul %odd has {columns} columns; slices of one product begin at multiples of 8" in refusal.reason


@pytest.mark.parametrize("how", ["output", "reshaped output", "state", "biased output", "output beside its bias"])
def test_what_leaves_the_graph_keeps_memory_of_its_own(how, rng):
    b = Branches(rng)
    k = b.product("k")
    q, v = b.product("q"), b.product("v")
    outputs, updates = {"q": b.behind(q), "v": b.behind(v)}, {}
    if how == "state":
        b.g.state("m", (5, 8), gd.float64)
        updates = {"m": k}
        outputs["s"] = b.behind(k)
    elif how == "biased output":
        outputs["k"] = b.g.bias(k, b.constant(8), axis=-1)
    elif how == "output beside its bias":
        outputs |= {"k": k, "s": b.behind(b.g.bias(k, b.constant(8), axis=-1))}
    else:
        outputs["k"] = k if how == "output" else b.g.transpose(b.g.reshape(k, (5, 2, 4)), (1, 0, 2))
    graph = b.g.build(outputs, updates)
    done = checked(graph, rng)
    merged = next(n for n in done.graph.nodes if n.op.label == "matmul" and len(n.origins) > 1)
    assert merged.origins == ("q", "v")
    (refusal,) = done.refusals
    assert refusal.nodes == ("k",)
    assert "which needs memory of its own" in refusal.reason


def test_others_stay_apart(rng):
    b = Branches(rng)
    g, x = b.g, b.x
    batched = g.matmul(g.input("h", (2, 5, 7), gd.float64), b.constant(2, 7, 8))
    run_time = g.matmul(x, g.input("w", (7, 8), gd.float64))
    other = b.product("other", x=g.input("z", (5, 7), gd.float64))
    graph = b.build(b.product("q"), batched, run_time, other)
    done = merge_products(graph, kernels())
    assert done.graph is graph
    assert not done.refusals


def test_weights_of_two_types_stay_apart(rng):
    b = Branches(rng, gd.float32)
    wide = b.g.matmul(b.x, b.g.constant(rng.normal(size=(7, 8))))
    graph = b.build(b.product("q"), wide)
    assert merge_products(graph, kernels()).graph is graph


def test_what_is_split_behind_was_merged_by_hand(rng):
    b = Branches(rng)
    q, k = b.g.split(b.product("qk", 16), (8, 8), axis=-1)
    graph = b.build(q, k, b.product("v"))
    done = merge_products(graph, kernels())
    assert done.graph is graph
    assert not done.refusals


def test_not_too_many_at_once(rng):
    b = Branches(rng)
    done = checked(b.build(*(b.product(f"p{i}") for i in range(2 * MOST_PRODUCTS + 1))), rng)
    assert labels(done.graph).count("matmul") == 3
    assert labels(done.graph).count("split") == 2


def test_a_reader_of_something_further_behind_is_not_weighed(rng):
    """k's slice meets what a later product makes of q's; the two stay in order, and the graph means the same."""
    b = Branches(rng)
    later = b.g.matmul(b.product("q"), b.constant(8, 8), name="later")
    done = checked(b.build(b.g.add(later, b.product("k"))), rng)
    assert labels(done.graph) == ["matmul", "split", "matmul", "add", "softmax"]


def selector(target="h200"):
    machine = gd.Target.named(target)
    return Selector(engines_for(machine.kind, ()), machine, gd.CompileOptions().policy())


@pytest.mark.parametrize(("batch", "tokens"), [(1, 33), (3, 128), (2, 1)])
def test_bert_layer(batch, tokens, rng):
    sizes = Config(hidden=128, heads=4, inner=264)
    graph = bert_layer(random_layer_weights(0, sizes, gd.float16), batch, tokens, sizes, gd.float16)
    report = gd.compile(graph, gd.Target.named("h200")).report
    before = gd.compile(graph, gd.Target.named("h200"), gd.CompileOptions(disabled_passes=("merge",))).report
    assert [r.pattern for r in report.regions if r.nodes[0].endswith("query")] == ["matmul+bias"]
    first = report.regions[0]
    assert [n.rsplit(".", 1)[-1] for n in first.nodes] == ["query", "key", "value", "bias", "bias_1", "bias_2"]
    assert not [r for r in report.regions if r.pattern in ("convert", "reshape", "transpose", "split")]
    assert [r.engine for r in report.regions if r.pattern == "attention"] == ["cudnn"]
    assert report.kernel_count == before.kernel_count - 2
    assert sum(r.estimated_us for r in report.regions) < sum(r.estimated_us for r in before.regions)


def test_llama_layer():
    """Rotary positions and attention of unequal numbers of heads read the slices."""
    sizes = LlamaConfig(hidden=1024, heads=8, kv_heads=2, head_dim=128, inner=3584)
    graph = layer(random_weights(0, sizes, gd.bfloat16), 1, 33, sizes, gd.bfloat16)
    report = gd.compile(graph, gd.Target.named("h200")).report
    assert [r.nodes for r in report.regions if "self_attn.q_proj" in r.nodes] == [
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    ]
    assert not [r for r in report.regions if r.pattern in ("convert", "reshape", "transpose", "split")]
    assert [r.engine for r in report.regions if r.pattern == "attention"] == ["cudnn"]


@pytest.mark.parametrize(("rows", "inner", "dtype", "width"), [(7, 24, gd.float16, 8), (33, 200, gd.float32, 4)])
def test_pointwise_work_over_two_slices_is_one_vectorised_kernel(rows, inner, dtype, width, rng):
    g = gd.GraphBuilder()
    x = g.input("x", (1, rows, 64), dtype)
    w = [g.constant(rng.normal(size=(64, inner)).astype(dtype.numpy)) for _ in range(2)]
    down = g.constant(rng.normal(size=(inner, 64)).astype(dtype.numpy))
    graph = g.build({"y": g.matmul(g.silu(g.matmul(x, w[0])) * g.matmul(x, w[1]), down)})
    priced = selector()
    prepared, _ = prepare(graph, priced.cheapest)
    assert labels(prepared) == ["matmul", "split", "silu", "mul", "matmul"]
    region = next(p.region for p in propose(prepared) if p.region.pattern == "silu+mul")
    assert [v.type.layout[-2:] for v in region.inputs] == [(2 * inner, 1)] * 2
    assert plan_walk(region, priced.target).width == width
    assert priced.support.answers(region)["nvrtc"]


@pytest.mark.parametrize("dtype", [gd.float32, gd.float16], ids=str)
def test_run_on_the_processor(dtype, rng):
    """Node by node, so that slices of one buffer pass from plan to plan; the engines' own choice is harmless too."""
    sizes = Config(hidden=48, heads=6, inner=130)
    graph = bert_layer(random_layer_weights(1, sizes, dtype), 3, 7, sizes, dtype)
    x = rng.normal(size=(3, 7, 48)).astype(dtype.numpy)
    wanted = gd.evaluate(graph, {"x": x}, dtype=gd.float64)["y"]
    done = merge_products(sink_views(graph).graph, lambda region: 1.0 if len(region.nodes) == 1 else None)
    assert labels(done.graph).count("split") == 1
    apart = gd.CompileOptions(disabled_passes=("fuse",))
    for exe in (gd.compile(done.graph, "cpu", apart), gd.compile(graph, "cpu")):
        assert relative_error(exe({"x": x})["y"], wanted) <= TOLERANCE[dtype.name]


def several(draw: Draw):
    """Two to four products of one value, some with a bias, some with pointwise work behind them."""
    x = draw.pick(int(draw.rng.choice([2, 3])))
    made = []
    for _ in range(int(draw.rng.integers(2, 5)) if x is not None else 0):
        n = int(draw.rng.choice([3, 8, 8, 16]))
        y = draw.g.matmul(x, draw.weight((x.type.shape[-1], n)))
        if draw.rng.random() < 0.5:
            bias = draw.weight((n,) if draw.rng.random() < 0.7 else (1, n))
            y = draw.g.add(bias, y) if draw.rng.random() < 0.5 else draw.g.add(y, bias)
        made.append(draw.g.sin(y) if draw.rng.random() < 0.3 else y)
    return made


def test_random_graphs(seed):
    families = ("matmul", "movement", "binary", "unary", "norm", "reduction")
    changed = 0
    for index in range(40):
        rng = np.random.default_rng([seed, index, 5])
        draw = Draw(gd.GraphBuilder("random"), rng, gd.float64)
        draw.pool.append(draw.g.input("rows", (draw.extent(), draw.extent(), draw.extent()), gd.float64))
        draw.pool.append(draw.g.input("matrix", (draw.extent(), draw.extent()), gd.float64))
        state = draw.g.state("memory", draw.pool[1].type.shape, gd.float64)
        draw.pool.append(draw.g.add(state, draw.pool[1]))
        while len(draw.pool) < 16:
            made = (several if rng.random() < 0.3 else FAMILIES[draw.one_of(families)])(draw)
            draw.pool += [] if made is None else [made] if isinstance(made, gd.Value) else made
        graph = drop_dead(finished(draw, state, 2)).then(sink_views).graph
        prices: dict[str, float] = {}

        def ask(region, rng=rng, prices=prices):
            """A made-up price, the same for the same region; larger regions rarely taken."""
            if len(region.nodes) > 1 and int(region.key[:4], 16) % 3:
                return None
            return prices.setdefault(region.key, float(rng.uniform(1, 4)))

        arrays = random_arrays(graph, rng)
        done = merge_products(graph, ask)
        assert_close(results(graph, arrays), results(done.graph, arrays))
        assert merge_products(done.graph, ask).graph is done.graph
        changed += bool(done.changes)
    assert changed  # about one graph in five, but how many is up to the seed
