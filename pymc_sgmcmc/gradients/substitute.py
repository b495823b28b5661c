"""Replace variables of a graph with expressions."""

from collections.abc import Sequence

from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import io_toposort


def substitute(outputs: Sequence[Variable], replace: dict[Variable, Variable]) -> list:
    """Rebuild the part of a graph that depends on some variables, with replacements for them.

    Unlike `pytensor.graph.replace.clone_replace`, it does not copy the graphs of the replacements
    at each use.
    """
    new = dict(replace)
    for node in io_toposort(list(replace), list(outputs)):
        if any(i in new for i in node.inputs):
            inputs = [new.get(i, i) for i in node.inputs]
            rebuilt = node.clone_with_new_inputs(inputs, strict=False)
            new.update(
                (old, out)
                for old, out in zip(node.outputs, rebuilt.outputs, strict=True)
                if old not in new
            )
    return [new.get(out, out) for out in outputs]


def without_views(outputs: Sequence[Variable]) -> list:
    """Rebuild a graph without the views that `pymc.Deterministic` makes.

    Views do not vectorise: they would be copied element by element.
    """
    new: dict[Variable, Variable] = {}
    for node in io_toposort([], list(outputs)):
        inputs = [new.get(i, i) for i in node.inputs]
        if isinstance(node.op, ViewOp):
            new[node.outputs[0]] = inputs[0]
        elif inputs != node.inputs:
            rebuilt = node.clone_with_new_inputs(inputs)
            new.update(zip(node.outputs, rebuilt.outputs, strict=True))
    return [new.get(out, out) for out in outputs]
