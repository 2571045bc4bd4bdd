"""The command line: what it prints, and one sentence with status 1 where something is wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.commands import cli, doctor
from graphdnn.commands.doctor import Finding
from graphdnn.report.model import CompileReport
from tests.planned import h200_report


def block() -> gd.Graph:
    g = gd.GraphBuilder("block")
    w = g.constant(np.ones((24, 16, 3, 3), np.float16), name="w")  # above 1 KiB, so it stands in a file of its own
    return g.build({"y": g.relu(g.conv(g.input("x", (2, 16, 9, 7), gd.float16), w, name="conv"), name="relu")})


@pytest.fixture
def saved(tmp_path: Path) -> str:
    path = str(tmp_path / "block.json")
    block().save(path)
    return path


def test_explain_prints_what_the_executable_explains(saved: str, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["explain", saved, "--target", "h200"]) == 0
    printed = capsys.readouterr()
    assert printed.out == gd.compile(block(), target=gd.Target.named("h200")).explain() + "\n"
    assert "conv+relu" in printed.out
    assert printed.err == ""


def test_explaining_needs_no_constants(saved: str, capsys: pytest.CaptureFixture) -> None:
    for beside in Path(saved).parent.glob("*.safetensors"):
        beside.unlink()
    assert cli.main(["explain", saved, "--target", "h200"]) == 0
    assert "conv+relu" in capsys.readouterr().out


def test_json_is_the_whole_report(saved: str, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["explain", saved, "--target", "h200", "--json"]) == 0
    assert CompileReport.model_validate_json(capsys.readouterr().out) == h200_report(block())


def test_passes_can_be_left_out(saved: str, capsys: pytest.CaptureFixture) -> None:
    arguments = ["explain", saved, "--target", "h200", "--json", "--disable-pass", "fuse", "--disable-pass", "fold"]
    assert cli.main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["options"]["disabled_passes"] == ["fuse", "fold"]
    assert all("+" not in region["pattern"] for region in report["regions"])


def test_cpu_is_a_target_too(saved: str, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["explain", saved, "--target", "cpu"]) == 0
    assert "for cpu" in capsys.readouterr().out


WRONG = [
    (["{folder}/nothing.json", "--target", "h200"], ["nothing.json"]),
    (["{folder}/broken.json", "--target", "h200"], ["broken.json"]),
    (["{saved}", "--target", "h201"], ["h201", "h200"]),
    (["{saved}", "--target", "h200", "--disable-pass", "fusion"], ["fusion", "fuse"]),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG)
def test_what_is_wrong_is_said_in_one_sentence(
    arguments: list[str], words: list[str], saved: str, capsys: pytest.CaptureFixture
) -> None:
    folder = Path(saved).parent
    (folder / "broken.json").write_text('{"schema": ')
    assert cli.main(["explain", *(a.format(folder=folder, saved=saved) for a in arguments)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("graphdnn: ")
    assert len(printed.err.strip().splitlines()) == 1
    for word in words:
        assert word in printed.err


def test_a_missing_command_is_a_matter_of_usage(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([])
    assert caught.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_the_script_runs(saved: str) -> None:
    code = "import sys; from graphdnn.commands.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "explain", saved, "--target", "nowhere"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "nowhere" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warning", 0), ("missing", 1)])
def test_doctor_prints_every_finding_and_fails_for_what_is_missing(
    status: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    findings = [Finding("cuDNN", "ok", "version 9.19"), Finding("NVRTC", status, "somewhere", "pip install it")]
    monkeypatch.setattr(doctor, "examine", lambda: findings)
    assert cli.main(["doctor"]) == code
    assert capsys.readouterr().out.splitlines() == [str(f) for f in findings]


def script(*arguments: str, **settings: Any) -> Any:
    code = "import sys; from graphdnn.commands.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run([sys.executable, "-c", code, *arguments], text=True, check=False, **settings)


def test_a_pipe_that_nobody_reads_ends_the_command_quietly(saved: str) -> None:
    """As `graphdnn explain ... | true` ends: without a word, with the status of SIGPIPE."""
    ending, writing = os.pipe()
    os.close(ending)
    try:
        done = script("explain", saved, "--target", "h200", "--json", stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_what_cannot_be_written_is_said_once(saved: str) -> None:
    with open("/dev/full", "w") as full:
        done = script("explain", saved, "--target", "h200", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr == "graphdnn: no space left on device\n"


def test_a_report_is_shown_by_an_output_that_takes_ascii_only(saved: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = script("explain", saved, "--target", "h200", capture_output=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_name_that_the_output_cannot_show_is_said_with_the_cure(tmp_path: Path) -> None:
    g = gd.GraphBuilder("größe")
    g.build({"y": g.relu(g.input("x", (4,), gd.float32))}).save(tmp_path / "named.json")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = script("explain", str(tmp_path / "named.json"), "--target", "h200", capture_output=True, env=environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("graphdnn: standard output is ascii, which lacks '\\xf6'; PYTHONIOENCODING=utf-8")
    assert done.stderr.count("\n") == 1


def test_the_version(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"graphdnn {gd.__version__}\n"


def test_an_interrupt_is_no_traceback(
    saved: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gd, "compile", interrupted)
    assert cli.main(["explain", saved, "--target", "cpu"]) == 130
    assert capsys.readouterr().err == "graphdnn: interrupted\n"


def test_the_package_runs_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "graphdnn", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"graphdnn {gd.__version__}\n"
