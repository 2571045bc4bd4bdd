"""Prints the plans that the real heuristics propose for a described H200, as JSON.  Run as a module in a child process:
a library that cuDNN misses ends the process."""

import json
import sys
from pathlib import Path

import cudnn

from graphdnn.answer import Decline
from graphdnn.engines.cudnn.anatomy import Anatomy
from graphdnn.engines.cudnn.lower import Lowering, lower
from graphdnn.engines.cudnn.plans import proposals
from tests.engines.cudnn.layouts import whole
from tests.engines.cudnn.surface_graphs import GRAPHS

PROPERTIES = Path(__file__).parents[2] / "data" / "h200_device_properties.json"


def main(name: str) -> None:
    properties = cudnn.create_device_properties(PROPERTIES.read_text())
    region = whole(GRAPHS[name]())
    frame = Anatomy(region).frame
    assert not isinstance(frame, Decline)

    def make() -> Lowering | Decline:
        return lower(region, frame, device_property=properties, sm_version=90)

    found = proposals(cudnn, make)
    assert not isinstance(found, Decline), found
    print(json.dumps([(str(p.name), p.workspace, p.notes, p.deterministic) for p in found]))


if __name__ == "__main__":
    main(sys.argv[1])
