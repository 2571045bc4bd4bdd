"""Writing an executable: the user's graph and the prepared one, their constants once, the plans, the report."""

from __future__ import annotations

from pathlib import Path

from graphdnn.engines.manifest import load_engine
from graphdnn.errors import SavedFileError
from graphdnn.files import path_to_write
from graphdnn.ir.graph import Graph
from graphdnn.planning.decisions import Compilation
from graphdnn.report.model import CompileReport
from graphdnn.serialization import container
from graphdnn.serialization.container import Bytes
from graphdnn.serialization.manifest import ManifestModel, PlanModel, StepModel, environment
from graphdnn.serialization.reports import encode_report
from graphdnn.serialization.weights import document


def save(graph: Graph, report: CompileReport, compilation: Compilation, path: Path) -> None:
    """Writes the file in one step.  Every pick has its plan.

    Raises SavedFileError where something stands at `path` that is no regular file.
    """
    place = path_to_write("save: path", path, SavedFileError)
    constants: dict[str, Bytes] = {}
    documents = {"graph": document(graph, constants), "prepared": document(compilation.prepared, constants)}
    manifest, plans = described(compilation)
    written: dict[str, Bytes] = {
        "manifest": manifest.model_dump_json().encode(),
        "report": encode_report(report),
        **documents,
        **{f"plan.{i}": content for i, content in enumerate(plans)},
        **constants,
    }
    container.write(place, written)


def described(compilation: Compilation) -> tuple[ManifestModel, list[bytes]]:
    """The manifest, and for each of its plans what its engine saves; equal regions share one plan."""
    places: dict[int, int] = {}
    models: list[PlanModel] = []
    contents: list[bytes] = []
    steps: list[StepModel] = []
    for pick in compilation.picks:
        chosen = pick.chosen
        assert chosen is not None
        place = places.setdefault(id(chosen.plan), len(models))
        if place == len(models):
            candidate = chosen.candidate
            contents.append(load_engine(pick.engine).save(candidate, chosen.plan))
            models.append(
                PlanModel(
                    engine=pick.engine,
                    name=candidate.name,
                    workspace_bytes=candidate.workspace_bytes,
                    precision=candidate.precision,
                    deterministic=candidate.deterministic,
                    notes=list(candidate.notes),
                    kernels=chosen.kernels,
                )
            )
        steps.append(StepModel(nodes=[n.name for n in pick.region.nodes], plan=place))
    manifest = ManifestModel(
        kind=compilation.target.kind,
        environment=environment(compilation.target),
        options=compilation.options.model_dump(mode="json", exclude={"cache_dir"}),
        left_out=list(compilation.left_out),
        plans=models,
        steps=steps,
    )
    return manifest, contents
