"""Models of `pymc.dims`: the same log probabilities as expressions of plain tensors."""

from collections.abc import Sequence

import pymc as pm
from pytensor.compile.ops import ViewOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.sharedvar import TensorSharedVariable
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorConstant, TensorVariable
from pytensor.xtensor.basic import XTensorFromTensor, tensor_from_xtensor, xtensor_from_tensor
from pytensor.xtensor.type import XTensorType


@node_rewriter([Shape, Shape_i])
def length_of_tensor(fgraph, node):
    """Replace the shape of a tensor with named dims by that of the plain tensor."""
    [x] = node.inputs
    if x.owner is None or not isinstance(x.owner.op, XTensorFromTensor):
        return None
    return [node.op(x.owner.inputs[0])]


@node_rewriter([ViewOp])
def without_view(fgraph, node):
    """Remove the view that a `pm.Deterministic` makes."""
    return list(node.inputs)


class TensorModel:
    """A model of `pymc.dims` with plain tensors for its values, data and log probabilities.

    It has the attributes and methods of `pymc.Model` that are needed to derive a gradient. Its
    random variables are the model's own.
    """

    def __init__(self, model: pm.Model):
        self.model = model
        self._tensors: dict[Variable, Variable] = {}
        self.free_RVs, self.observed_RVs = model.free_RVs, model.observed_RVs
        self.potentials, self.named_vars = model.potentials, model.named_vars
        self.named_vars_to_dims, self.dim_lengths = model.named_vars_to_dims, model.dim_lengths
        values = self.tensors(list(model.rvs_to_values.values()))
        self.rvs_to_values = dict(zip(model.rvs_to_values, values, strict=True))
        self.values_to_rvs = {value: rv for rv, value in self.rvs_to_values.items()}
        self.rvs_to_transforms = model.rvs_to_transforms
        self.value_vars = [self._tensor(v) for v in model.value_vars]
        self.data_vars = [self._tensor(v) for v in model.data_vars]
        self.initial_point = model.initial_point

    def logp(self, vars=None, jacobian=True, sum=True):
        """Like the model's own `logp`."""
        logp = self.model.logp(vars=vars, jacobian=jacobian, sum=sum)
        return self.tensors([logp])[0] if sum else self.tensors(logp)

    def replace_rvs_by_values(self, graphs: Sequence[Variable]) -> list[TensorVariable]:
        """Like the model's own `replace_rvs_by_values`."""
        return self.tensors(self.model.replace_rvs_by_values(list(graphs)))

    def _tensor(self, leaf: Variable) -> Variable:
        """Return the plain tensor for a value variable, a data container or a constant."""
        if not isinstance(leaf.type, XTensorType):
            return leaf
        if leaf not in self._tensors:
            kind = TensorType(leaf.type.dtype, leaf.type.shape)
            if isinstance(leaf, SharedVariable):  # shares its memory, so it follows `pm.set_data`
                tensor = TensorSharedVariable(
                    kind, value=None, strict=None, container=leaf.container, name=leaf.name
                )
            elif isinstance(leaf, Constant):
                tensor = TensorConstant(kind, leaf.data, name=leaf.name)
            else:
                tensor = kind(leaf.name)
            if isinstance(leaf, Constant):  # has no name in the model to look up its dims
                tensor.tag.dims = leaf.type.dims
            self._tensors[leaf] = tensor
        return self._tensors[leaf]

    def tensors(self, expressions: Sequence[Variable]) -> list[TensorVariable]:
        """Return expressions with plain tensors instead of tensors with named dims.

        An error names any operation that PyTensor has only for named dims.
        """
        named = [v for v in ancestors(expressions) if isinstance(v.type, XTensorType)]
        if not named:
            return list(expressions)
        leaves = {
            v: xtensor_from_tensor(self._tensor(v), dims=v.type.dims)
            for v in named
            if v.owner is None
        }
        outputs = [
            tensor_from_xtensor(e) if isinstance(e.type, XTensorType) else e for e in expressions
        ]
        # Our tensors are the inputs, not PyTensor's copies of them, because ours get values later.
        outputs = clone_replace(outputs, leaves)
        in_the_way = dfs_rewriter(length_of_tensor, without_view)
        for _ in range(2):
            outputs = rewrite_graph(outputs, include=("lower_xtensor",), custom_rewrite=in_the_way)
        for v in ancestors(outputs):
            if isinstance(v.type, XTensorType):
                raise ValueError(
                    f"The operation {v.owner.op} on named dims ({', '.join(v.type.dims)}) has no "
                    "equivalent on plain tensors: write this part of the model without pymc.dims."
                )
        return outputs
