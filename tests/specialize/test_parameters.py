"""What can be jitted: a function whose first parameter takes a builder; all else is refused in one sentence."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import numpy as np
import pytest

import graphdnn as gd

cpu = functools.partial(gd.jit, target="cpu")


def an_executable() -> gd.Executable:
    g = gd.GraphBuilder()
    return gd.compile(g.build({"y": g.relu(g.input("x", (3,), gd.float32))}), target="cpu")


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (dict, "dict is a class; a Python function whose first parameter takes a GraphBuilder is needed"),
        (gd.GraphBuilder, "GraphBuilder is a class; a Python function"),
        (len, "len is built into Python; a Python function"),
        (max, "max is built into Python"),
        (print, "print is built into Python"),
        (gd.jit(lambda g, x: {"y": x}), "jitted function already"),
        (an_executable(), "a compiled graph already; a Python function"),
    ],
    ids=lambda p: getattr(p, "__name__", "said"),
)
def test_what_knows_no_builder_is_refused(fn: Any, said: str) -> None:
    with pytest.raises(gd.CompileError, match=said):
        cpu(fn)


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (
            lambda x: {"y": x},
            "x is not an input of lambda; its inputs are none; its first parameter, x, takes the Graph",
        ),
        (lambda x, w: {"y": x @ w}, "its inputs are w; its first parameter, x, takes the GraphBuilder"),
    ],
)
def test_a_forgotten_builder_is_said(fn: Any, said: str) -> None:
    array = np.ones((3, 3), np.float32)
    with pytest.raises(gd.ExecutionError, match=said):
        cpu(fn)(dict.fromkeys(inspect.signature(fn).parameters, array))
