"""Graphs as text in tests of passes: a body of lines in, the lines of the nodes out."""

import graphdnn as gd


def parsed(inputs: str, *lines: str) -> gd.Graph:
    """The graph of these lines; the last node's result is its output y unless a line says `return`."""
    body = list(lines)
    if not any(line.startswith("return") for line in lines):
        body.append(f"return y = {lines[-1].split(' = ')[0]}")
    return gd.parse("\n".join((f"graph g({inputs}) {{", *body, "}")))


def nodes(graph: gd.Graph) -> list[str]:
    """The lines of the nodes, and where the outputs come from."""
    lines = [line.strip() for line in str(graph).splitlines()]
    return [line for line in lines if line.startswith(("%", "return", "update"))]
