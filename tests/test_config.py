"""Options and arguments that are wrong: one sentence, with the nearest of the words that are known."""

from pathlib import Path
from typing import Any

import pytest

import graphdnn as gd
from graphdnn.engines.manifest import MANIFEST
from graphdnn.spelling import nearest

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"selecton": "autotune"}, "there is no option 'selecton'; did you mean 'selection'? (options are precision, "),
    ({"Workspace_Limit": 0}, "there is no option 'Workspace_Limit'; did you mean 'workspace_limit'? "),
    ({"zzz": 1}, "there is no option 'zzz' (options are precision, "),
    ({"self": 1}, "there is no option 'self'"),
    ({"precision": "tf23"}, "precision is 'tf23'; 'ieee', 'tf32' or 'reduced' is needed; did you mean 'tf32'?"),
    ({"precision": "fp32"}, "precision is 'fp32'; 'ieee', 'tf32' or 'reduced' is needed; did you mean 'ieee'?"),
    ({"precision": "Float32"}, "'ieee', 'tf32' or 'reduced' is needed; did you mean 'ieee'?"),
    ({"precision": "TF32"}, "'ieee', 'tf32' or 'reduced' is needed; did you mean 'tf32'?"),
    ({"selection": None}, "selection is None; 'heuristic', 'autotune' or 'measure' is needed"),
    ({"workspace_limit": "12"}, "workspace_limit is '12'; a whole number is needed"),
    ({"workspace_limit": -1}, "workspace_limit is -1; a number of at least 0 is needed"),
    ({"tuning_budget_s": float("nan")}, "tuning_budget_s is nan; a finite number is needed"),
    ({"progress": 1}, "progress is 1; True or False is needed"),
    ({"cache_dir": 3}, "cache_dir is 3; text is needed"),
    ({"disabled_passes": "fuse"}, "disabled_passes is 'fuse'; a tuple or list of names is needed"),
    ({"disabled_passes": ("fold", 1)}, "entry 1 of disabled_passes is 1; text is needed"),
    ({"disabled_passes": ("fuze",)}, "disabled_passes is ('fuze',): 'fuze' is not one of canonicalize, "),
    ({"disabled_engines": ("cuDN",)}, "did you mean 'cudnn'?"),
    ({"disabled_plans": ("cudn:eng8",)}, f"'cudn' is not one of {', '.join(MANIFEST)}; did you mean 'cudnn"),
]


@pytest.mark.parametrize(("options", "sentence"), WRONG, ids=lambda o: str(o)[:40])
def test_wrong_options_are_answered_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(gd.CompileError) as caught:
        gd.CompileOptions(**options)
    said = str(caught.value)
    assert said.startswith("CompileOptions: ")
    assert sentence in said
    assert "\n" not in said
    assert "Input should" not in said
    assert "pydantic" not in said


def test_options_that_exist_stay_as_they_are() -> None:
    options = gd.CompileOptions(precision="tf32")
    with pytest.raises(
        AttributeError, match=r"^CompileOptions: precision cannot be set on options that exist; [^\n]*$"
    ):
        options.precision = "ieee"  # type: ignore[misc]
    with pytest.raises(AttributeError, match=r"^CompileOptions: precision cannot be deleted from options that exist; "):
        del options.precision
    assert options.precision == "tf32"
    assert options.model_copy(update={"deterministic": True}).deterministic


def test_a_long_value_is_not_repeated_whole() -> None:
    with pytest.raises(gd.CompileError) as caught:
        gd.CompileOptions(precision="ieee" * 1000)
    assert len(str(caught.value)) < 300


def test_the_right_spelling_is_not_likened() -> None:
    assert gd.CompileOptions(disabled_passes=["fuse"]).disabled_passes == ("fuse",)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: gd.compile(None, optons=None), "compile: there is no argument 'optons'; did you mean 'options'?"),
        (lambda: gd.compile(None, colour=1), "compile: there is no argument 'colour' (it takes graph, target, "),
        (lambda: gd.jit(lambda g: {}, bucket={}), "jit: there is no argument 'bucket'; did you mean 'buckets'?"),
        (lambda: gd.load("x.gdn", rebuid=False), "load: there is no argument 'rebuid'; did you mean 'rebuild'?"),
    ],
)
def test_misspelt_arguments_are_named(call: Any, sentence: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert sentence in str(caught.value)


def test_options_given_to_compile_are_pointed_to_compile_options() -> None:
    with pytest.raises(
        TypeError, match=r"^compile: 'precision' is an option; options=gd\.CompileOptions\(precision=\.\.\.\)"
    ):
        gd.compile(None, precision="tf32")


def test_nearness() -> None:
    assert nearest("Selecton ", ("selection", "precision")) == "selection"
    assert nearest("", ("selection",)) is None
    assert nearest(7, ("selection",)) is None


def test_warnings_name_the_line_that_called(tmp_path: Path) -> None:
    """Not a line of ours, which would have Python show the warning once for all callers."""
    g = gd.GraphBuilder()
    exe = gd.compile(g.build({"y": g.relu(g.input("x", (3,), gd.float32))}), target="cpu")
    exe.save(tmp_path / "x.gdn")
    exe.save_lock(tmp_path / "x.lock.json")
    h200 = gd.Target.named("h200")
    with pytest.warns(RuntimeWarning) as loading:
        gd.load(tmp_path / "x.gdn", h200)
    with pytest.warns(RuntimeWarning) as locking:
        gd.compile(exe.graph, h200, lock=tmp_path / "x.lock.json")
    assert [w.filename for w in (*loading, *locking)] == [__file__, __file__]
