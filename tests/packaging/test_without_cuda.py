"""Where no CUDA package, PyTorch or ONNX can be imported, graphs run on the CPU and are planned for a described GPU."""

import subprocess
import sys

from tests.processes import child_environment

ABSENT = """
import sys

class Absent:
    names = {"cuda", "cudnn", "nvidia", "nvmath", "cupy", "torch", "onnx"}
    asked = set()

    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        if root in self.names:
            self.asked.add(root)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

absent = Absent()
sys.meta_path.insert(0, absent)
"""

GRAPH = """
import numpy as np
import graphdnn as gd

g = gd.GraphBuilder("block")
x = g.input("x", (2, 4, 6, 6), gd.float16)
w = g.constant(np.full((8, 4, 3, 3), 0.125, np.float16), name="w")
h = g.relu(g.bias(g.conv(x, w, padding=1), g.constant(np.ones(8, np.float16)), axis=1))
rows = g.reshape(h, (2, 8, 36))
graph = g.build({"y": g.softmax(g.matmul(rows, g.transpose(rows, (0, 2, 1))))})
"""


def said(script: str) -> str:
    """What a process prints in which none of them can be imported."""
    done = subprocess.run(
        [sys.executable, "-c", ABSENT + GRAPH + script], capture_output=True, text=True, env=child_environment()
    )
    assert not done.returncode, done.stderr
    return done.stdout


def test_a_graph_is_compiled_and_called_on_the_cpu() -> None:
    script = """
x = np.arange(288, dtype=np.float16).reshape(2, 4, 6, 6) / 288
for target in ("cpu", "auto"):
    found = gd.compile(graph, target=target)({"x": x})["y"]
    np.testing.assert_array_equal(found, gd.evaluate(graph, {"x": x})["y"])
    print(target, found.shape, np.isfinite(found).all(), absent.asked or "nothing asked for")
"""
    cpu, auto = said(script).splitlines()
    assert cpu == "cpu (2, 8, 8) True nothing asked for"
    assert auto.startswith("auto (2, 8, 8) True")


def test_a_described_device_is_explained_as_if_all_were_there() -> None:
    text = said(
        'print(gd.compile(graph, target=gd.Target.named("h200")).explain(), absent.asked or "nothing asked for")'
    )
    assert text.startswith("graph block for h200 (described): ")
    for engine in ("cudnn", "cublaslt", "nvrtc"):
        assert engine in text
    assert "setup" not in text
    assert text.endswith("nothing asked for\n")


def test_the_device_that_is_not_there_is_refused_in_a_sentence_that_says_what_to_install() -> None:
    script = """
try:
    gd.compile(graph, target="cuda")
except gd.SetupError as error:
    print(error)
"""
    (line,) = said(script).splitlines()
    assert "No module named 'cuda'" in line
    assert "install the package cuda-python>=13,<14" in line


def test_the_command_line_explains_and_the_doctor_answers(tmp_path) -> None:
    script = f"""
from graphdnn.commands import cli
graph.save({str(tmp_path / "block.json")!r})
print(cli.main(["explain", {str(tmp_path / "block.json")!r}, "--target", "h200"]))
print(cli.main(["doctor"]) in (0, 1))
"""
    lines = said(script).splitlines()
    assert lines[-1] == "True"
    assert "0" in lines
