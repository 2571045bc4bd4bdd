"""The benchmarks without a device: turns and medians by a fake clock, rows, files, pages, and whole rows on the CPU."""

import gc
import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graphdnn as gd
from benchmarks import compile_once, compile_time, kernel_cases, kernels, launch, layers, plan_choice, tables
from benchmarks.comparison import arguments, empty_output, graph_floor_us, largest_error, random_tensor, strides_of
from benchmarks.kernel_cases import CASES
from benchmarks.results import Row, chosen_rows, device_folder, document, measured, rounded, save, sentence
from benchmarks.timing import Ceilings, in_blocks, interleaved, medians
from benchmarks.torch_peers import BertLayer, LlamaLayer, Peer, ResNet50, inductor, tensor
from examples.models import bert, llama
from tests.benchmarks.processor import Processor
from tests.numbers import TOLERANCE

SMALL_BERT = bert.Config(hidden=48, heads=6, layers=1, inner=130)
SMALL_LLAMA = llama.Config(hidden=96, heads=6, kv_heads=2, head_dim=16, inner=200)
CEILINGS = Ceilings(4e12, {"float16": 8e14, "bfloat16": 8e14, "float32": 5e13})
KEYS = {
    "name", "ours_us", "peers", "floor_us", "ratio", "error", "peer_error", "samples", "estimated_us", "settings",
}  # fmt: skip


def row(name: str = "a", ours: float = 2.0, **peers: float) -> Row:
    return Row(name, ours, peers, 1.0, 1e-4, 2e-4 if peers else None, 7, 3.0, {"dtype": "float16"})


def test_contenders_take_turns_and_warm_up_is_dropped() -> None:
    order: list[str] = []
    seen = iter(range(1000))

    def clock(run: Callable[[], object]) -> float:
        run()
        return float(next(seen))

    runs = {name: (lambda name=name: order.append(name)) for name in "abc"}
    times = interleaved(runs, clock, samples=4, warm_up=2)
    assert "".join(order) == "abcbcacababcbcacab"
    assert times == {"a": [7.0, 9.0, 14.0, 16.0], "b": [8.0, 10.0, 12.0, 17.0], "c": [6.0, 11.0, 13.0, 15.0]}
    assert medians(times, runs=2) == {"a": 5.75, "b": 5.5, "c": 6.0}


def test_blocks_repeat_a_contender_and_drop_what_warms_it_up() -> None:
    order: list[str] = []
    seen = iter(range(1000))

    def clock(run: Callable[[], object]) -> float:
        run()
        return float(next(seen))

    runs = {name: (lambda name=name: order.append(name)) for name in "ab"}
    times = in_blocks(runs, clock, samples=4, warm_up=1, blocks=2)
    assert "".join(order) == "aaabbbbbbaaa"
    assert times == {"a": [1.0, 2.0, 10.0, 11.0], "b": [4.0, 5.0, 7.0, 8.0]}


def test_the_collector_comes_back_on() -> None:
    enabled: list[bool] = []

    def clock(run: Callable[[], object]) -> float:
        enabled.append(gc.isenabled())
        if len(enabled) == 2:
            raise ValueError("inside")
        return 1.0

    with pytest.raises(ValueError, match="inside"):
        interleaved({"a": int}, clock)
    assert enabled == [False, False]
    assert gc.isenabled()


def test_the_floor_is_the_larger_of_bytes_and_products() -> None:
    assert CEILINGS.floor_us(8_000_000, {}) == pytest.approx(2.0)
    assert CEILINGS.floor_us(8_000_000, {"float16": 2.4e9, "float32": 1e8}) == pytest.approx(5.0)


def test_the_floor_of_a_graph_counts_inputs_constants_outputs_and_products() -> None:
    graph = bert.bert_layer(bert.random_layer_weights(0, SMALL_BERT, gd.float16), 2, 5, SMALL_BERT, gd.float16)
    numbers = 2 * 2 * 5 * 48 + 4 * 48 * 49 + 2 * 48 * 130 + 130 + 48 + 4 * 48
    slow_memory = Ceilings(1e6, {"float16": 1e18})
    assert graph_floor_us(graph, slow_memory) == pytest.approx(2 * numbers)
    products = 2 * 10 * (4 * 48 * 48 + 2 * 48 * 130)
    slow_products = graph_floor_us(graph, Ceilings(1e18, {"float16": 1e6}))
    attention = 2 * 6 * 25 * 2 * (8 + 8)
    assert products + attention <= slow_products <= 1.05 * (products + attention) + 5 * 2 * 6 * 25


def test_depthwise_convolutions_count_bytes_only() -> None:
    graph = CASES["depthwise 5x5 32x960x7x7 relu f16"]().graph()
    nbytes = 2 * (2 * 32 * 960 * 49 + 960 * 26)
    assert graph_floor_us(graph, Ceilings(1e6, {"float16": 1.0})) == pytest.approx(nbytes)


def test_a_rows_ratio_is_the_best_peers_time_over_ours() -> None:
    assert row(eager=5.0, inductor=3.0).ratio == 1.5
    assert row().ratio is None
    found = row(eager=5.00049, inductor=3.0).as_json()
    assert found.keys() == KEYS
    assert found["peers"] == {"eager": 5.0, "inductor": 3.0}
    assert rounded({"a": [1234567.0, "x", 3], "b": None}) == {"a": [1235000.0, "x", 3], "b": None}


def test_a_run_of_some_rows_keeps_the_others(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "h200" / "layers.json"
    monkeypatch.setenv("GRAPHDNN_COMMIT", "first")
    save(path, [row("b", eager=4.0), row("a", eager=4.0), row("gone")], {"torch": "1"}, ["a", "b", "gone"])
    monkeypatch.setenv("GRAPHDNN_COMMIT", "second")
    save(path, [row("b", eager=9.0)], {"torch": "2"}, ["a", "b"])
    found = json.loads(path.read_text())
    assert [r["name"] for r in found["rows"]] == ["a", "b"]
    assert (found["commit"], found["versions"]) == ("second", {"torch": "2"})
    assert found["rows"][0]["settings"]["commit"] == "first"
    assert "commit" not in found["rows"][1]["settings"]
    assert found["rows"][1]["peers"]["eager"] == 9.0
    save(path, [], {"torch": "2"}, ["a", "b"])
    assert json.loads(path.read_text())["rows"][0]["settings"]["commit"] == "first"


def test_a_row_that_fails_does_not_take_the_others_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    kept: list[list[str]] = []

    def measure(name: str) -> Row:
        if name == "b":
            raise RuntimeError("no memory left")
        return row(name, eager=3.0)

    assert measured("abc", measure, lambda rows: kept.append([r.name for r in rows]), sentence) == 1
    assert kept == [["a"], ["a", "c"]]
    assert "b: failed: RuntimeError: no memory left" in capsys.readouterr().out
    assert measured("ac", measure, lambda rows: None, sentence) == 0


def test_rows_are_chosen_by_name_or_part() -> None:
    names = ["bind 1", "bind 10", "call 1"]
    assert chosen_rows(None, names) == names
    assert chosen_rows("bind", names) == ["bind 1", "bind 10"]
    assert chosen_rows("bind 1, call", names) == ["bind 1", "call 1"]
    with pytest.raises(SystemExit, match="names none of"):
        chosen_rows("nothing", names)


def test_options_of_a_suite() -> None:
    options = arguments("layers", "Layers").parse_args(["--rows", "bert", "--skip-inductor", "--samples", "9"])
    assert (options.rows, options.skip_inductor, options.samples, options.out) == ("bert", True, 9, None)


def test_device_folder() -> None:
    assert device_folder("NVIDIA H200") == "h200"
    assert device_folder("NVIDIA A100-SXM4-80GB") == "a100-sxm4-80gb"


def test_errors_are_relative_to_the_peak_and_see_what_was_not_written() -> None:
    expected = torch.tensor([0.0, -4.0], dtype=torch.float64)
    assert largest_error(torch.tensor([0.5, -4.0]), expected) == 0.125
    assert largest_error(torch.tensor([0.0, float("nan")]), expected) == float("inf")


def test_tensors_lie_as_the_graph_declares() -> None:
    case = CASES["to channels-last 32x3x224x224 f16"]()
    output = empty_output(case.graph(), "cpu")
    assert output.is_contiguous(memory_format=torch.channels_last)
    assert output.isnan().all()
    x = random_tensor((2, 5, 3, 7), torch.float16, True, 3, "cpu")
    assert x.stride() == strides_of((2, 5, 3, 7), True)
    assert torch.equal(x, random_tensor((2, 5, 3, 7), torch.float16, False, 3, "cpu"))
    assert strides_of((2, 5, 3, 7), False) is None


def test_bfloat16_arrays_become_tensors() -> None:
    array = np.array([[1.5, -2.0], [0.25, 3.0]], gd.bfloat16.numpy).T
    assert torch.equal(tensor(array, "cpu"), torch.tensor([[1.5, 0.25], [-2.0, 3.0]], dtype=torch.bfloat16))


def resnet_twin() -> tuple[Peer, tuple[int, ...]]:
    return ResNet50(layers.RESNET50.parameters, "cpu", torch.float32), (1, 3, 32, 32)


def bert_twin() -> tuple[Peer, tuple[int, ...]]:
    weights = bert.random_layer_weights(0, SMALL_BERT, gd.float32)
    return BertLayer(weights, SMALL_BERT, "cpu", torch.float32), (2, 9, 48)


def llama_twin() -> tuple[Peer, tuple[int, ...]]:
    weights, table = llama.random_weights(0, SMALL_LLAMA, gd.float32), llama.rotary_table(9, SMALL_LLAMA, gd.float32)
    return LlamaLayer(weights, table, SMALL_LLAMA, "cpu", torch.float32), (2, 9, 96)


@pytest.mark.parametrize("freezing", [False, True])
@pytest.mark.parametrize("twin", [bert_twin, llama_twin, pytest.param(resnet_twin, marks=pytest.mark.slow)])
def test_peers_are_traced_whole_with_inductors_settings(
    twin: Callable[[], tuple[Peer, tuple[int, ...]]], freezing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Freezing must be on while tracing, since the tracer decides which parameters stay constants."""
    from torch._inductor import config

    while_tracing = []

    def backend(traced: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        while_tracing.append(config.freezing)
        return traced.forward

    original = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **given: original(f, backend=backend, fullgraph=True, **given))
    peer, shape = twin()
    x = random_tensor(shape, torch.float32, False, 5, "cpu")
    with torch.inference_mode():
        torch.testing.assert_close(inductor(peer, x, freezing=freezing)(x), peer(x))
    assert while_tracing == [freezing]
    assert not config.freezing


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(lambda: layers.bert_case(2, 5, SMALL_BERT), id="bert"),
        pytest.param(lambda: layers.llama_case(1, 7, SMALL_LLAMA), id="llama"),
        pytest.param(lambda: layers.RESNET50.case(1, 32), id="resnet", marks=pytest.mark.slow),
        pytest.param(lambda: layers.MOBILENET_V3.case(1, 32), id="mobilenet", marks=pytest.mark.slow),
        pytest.param(lambda: layers.U_NET_BLOCK.case(1, 8), id="u_net_block", marks=pytest.mark.slow),
    ],
)
def test_a_layer_is_measured_on_the_cpu(case: Callable[[], layers.Case]) -> None:
    found = layers.measure(Processor(), case(), "small", CEILINGS, samples=3, skip_inductor=True)
    assert found.as_json().keys() == KEYS
    assert found.peers.keys() == {"eager"}
    assert 0 < found.error <= 1.6e-2
    assert 0 < found.peer_error <= 1.6e-2
    assert found.ours_us == pytest.approx(found.peers["eager"], abs=15)
    json.dumps(found.as_json())


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(kernel_cases.depthwise(2, 24, 7, 5, relu=True), id="depthwise"),
        pytest.param(kernel_cases.channels_last((2, 3, 7, 5)), id="channels_last"),
        pytest.param(kernel_cases.square_product(33, ("cudnn",)), id="matmul"),
        pytest.param(kernel_cases.convolution(1, 7, 5, ()), id="convolution"),
        pytest.param(replace(kernel_cases.softmax(), shapes=((5, 300),)), id="softmax"),
        pytest.param(replace(kernel_cases.add_relu(), shapes=((3, 65), (3, 65))), id="add_relu"),
        pytest.param(replace(kernel_cases.layer_norm(), shapes=((3, 4096),)), id="layer_norm"),
        pytest.param(replace(kernel_cases.rms_norm(), shapes=((3, 4096),)), id="rms_norm"),
        pytest.param(replace(kernel_cases.max_pool(), shapes=((2, 5, 9, 7),)), id="max_pool"),
        pytest.param(replace(kernel_cases.global_average_pool(), shapes=((2, 5, 3, 7),)), id="global_average_pool"),
    ],
)
def test_a_kernel_is_measured_on_the_cpu(case: kernel_cases.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "rotations", lambda nbytes: 2)
    found = kernels.measure(Processor(), case, "small", CEILINGS, samples=3, skip_inductor=True)
    assert found.settings["rotated sets"] == 2
    assert found.error <= TOLERANCE[case.dtype.name]
    assert found.peer_error <= TOLERANCE[case.dtype.name]
    assert found.floor_us > 0
    json.dumps(found.as_json())


@pytest.mark.parametrize("name", CASES)
def test_every_kernel_is_one_region_on_an_h200(name: str) -> None:
    case = CASES[name]()
    options = gd.CompileOptions(disabled_engines=case.disabled)
    report = gd.compile(case.graph(), target=gd.Target.named("h200"), options=options).report
    assert len(report.regions) == 1
    assert report.regions[0].engine not in case.disabled
    assert report.estimated_us > graph_floor_us(case.graph(), CEILINGS) / 2


def test_rotated_tensors_exceed_the_cache() -> None:
    assert kernels.rotations(1 << 30) == kernels.FEWEST
    assert kernels.rotations(10 << 20) == 20
    assert kernels.rotations(1) == kernels.MOST


@pytest.mark.parametrize("count", [1, 10, 60, pytest.param(600, marks=pytest.mark.slow)])
def test_chains_have_as_many_kernels_as_they_say(count: int) -> None:
    report = gd.compile(launch.chain(count), target=gd.Target.named("h200")).report
    launch.check_kernels(count, report.kernel_count, len(report.regions))
    with pytest.raises(RuntimeError, match="chain of 7 kernels"):
        launch.check_kernels(7, report.kernel_count)


def test_both_chains_are_the_same_function() -> None:
    x = random_tensor(launch.SHAPE, torch.float32, False, 1, "cpu")
    found = gd.compile(launch.chain(3), target="cpu")({"x": x.numpy()})["y"]
    assert largest_error(torch.from_numpy(found), launch.torch_chain(x.double(), 3)) <= 1e-6


def test_rows_of_one_count_share_one_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def measure(self: launch.Measured, count: int) -> dict[str, Any]:
        asked.append(count)
        return {
            "times": {"bind": 3.0, "call": 8.0, "jit": 9.0, "torch_graph_replay": 2.4, "driver": 1.9},
            "alternating": {"bind": 5.0, "call": 17.0, "jit": 19.0, "torch_graph_replay": 6.7, "driver": 4.0},
            "errors": {"bind": 1e-7, "call": 2e-7, "jit": 2e-7},
            "peer_error": 3e-7, "estimated_us": 2.5, "kernels": count, "peer_nodes": count, "failures": {},
        }  # fmt: skip

    monkeypatch.setattr(launch.Measured, "_measure", measure)
    found = launch.Measured(9)
    rows = [launch.measure(name, found) for name in launch.row_names()]
    assert {"bind 1", "bind 10", "bind 60", "bind 100", "bind 600", "call 1", "jit 1"} <= {r.name for r in rows}
    assert asked == list(launch.COUNTS)
    assert (rows[0].ours_us, rows[-1].ours_us, rows[0].ratio, rows[0].floor_us) == pytest.approx((3.0, 9.0, 0.8, 1.9))
    assert [r.settings["alternating_us"]["ours"] for r in (rows[0], rows[-1])] == [5.0, 19.0]


def test_a_page_shows_every_row() -> None:
    rows = [row("resnet50 b1", 329.4, eager=819.0, inductor=391.2), row("small", 7.123, eager=14.5)]
    page = tables.page({"h200": {"layers": document(rows, {"torch": "2.11"}, ["resnet50 b1", "small"])}})
    assert "## h200" in page
    assert "| resnet50 b1 | 329 | 819 | 391 | **1.19** | 1.00 | 3.00 | 1e-04 | 2e-04 |" in page
    assert "| small | 7.12 | 14.5 | – | **2.04** |" in page
    assert "Versions: torch 2.11." in page
    assert "What holds" not in page


def test_a_page_says_why_a_row_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "CAUSES", {"slow": "it waits", "fast": "nothing"})
    rows = [row("slow", 20.0, eager=10.0), row("fast", 5.0, eager=10.0)]
    page = tables.page({"h200": {"layers": document(rows, {}, ["slow", "fast"])}})
    assert "What holds slow back: it waits." in page
    assert "fast back" not in page


def test_causes_are_of_rows_that_there_are() -> None:
    assert tables.CAUSES.keys() <= layers.CASES.keys()


def test_a_page_shows_what_choosing_plans_costs() -> None:
    settings = {"cold_s": 1.234, "warm_s": 0.05, "tuning_s": 12.34, "candidates": []}
    settings["candidates"] = [{"estimated_us": 4.0, "measured_us": 2.0}]
    rows = [replace(row("matmul a", 6.0, best=4.0), settings=settings)]
    page = tables.page({"h200": {"plan_choice": document(rows, {}, ["matmul a"])}})
    assert "| matmul a | 6.00 | 4.00 | **0.67** | 1.00 | 3.00 | 1e-04 | 1.23 | 0.05 | 12.3 |" in page
    assert "1 regions, 1 candidates timed: median |log2(estimated / measured)| 1.00" in page


def test_a_page_shows_compile_times_in_seconds() -> None:
    rows = [row("cold", 5.1e6, inductor=14.2e6), row("warm", 4.1e5)]
    page = tables.page({"h200": {"compile_time": document(rows, {}, ["cold", "warm"])}})
    assert "Seconds; commit" in page
    assert "| cold | 5.10 | 14.2 | **2.78** | 1e-04 |" in page
    assert "| warm | 0.41 | – | – | 1e-04 |" in page


def test_what_makes_handles_is_nothing_of_the_network() -> None:
    exe = gd.compile(compile_once.small(), "cpu")
    assert {r.pattern for r in exe.report.regions} >= {"conv", "softmax", "matmul"}
    patterns = {r.pattern for r in gd.compile(compile_once.network(1), gd.Target.named("h200")).report.regions}
    assert len([p for p in patterns if p.startswith("conv+bias")]) >= 3


def test_a_process_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ended with status 1") as caught:
        compile_time.in_a_process("no such way", tmp_path)
    assert "Error" in str(caught.value)


def test_every_suite_is_a_module_with_its_own_words_on_the_page() -> None:
    for name in tables.SUITES:
        assert importlib.import_module(f"benchmarks.{name}").main
        assert f"`{name}`" in tables.INTRODUCTION


def test_the_documentation_is_generated_from_the_results() -> None:
    assert tables.DOCUMENT.read_text() == tables.page(tables.result_files()), "run python -m benchmarks.tables"


NAMES = {
    "layers": layers.CASES,
    "launch": launch.row_names(),
    "kernels": kernels.CASES,
    "plan_choice": plan_choice.CASES,
    "compile_time": [f"resnet50 b{compile_time.BATCH} {way}" for way in compile_time.WAYS],
}


@pytest.mark.parametrize("suite", tables.SUITES)
def test_results_have_rows_of_the_suite_only(suite: str) -> None:
    for suites in tables.result_files().values():
        for found in suites.get(suite, {}).get("rows", []):
            assert found.keys() == KEYS
            assert found["name"] in NAMES[suite]
            assert found["ours_us"] > 0
