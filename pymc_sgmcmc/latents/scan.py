"""A scan that depends only on its arguments."""

from collections.abc import Callable, Sequence

from pytensor.graph.basic import Variable
from pytensor.scan.basic import scan


def strict_scan(
    function: Callable[..., list[Variable]],
    sequences: Sequence[Variable],
    outputs_info: Sequence[Variable | None],
    non_sequences: Sequence[Variable],
    n_steps: int,
) -> list[Variable]:
    """Run PyTensor's strict scan, with the same variable allowed as several non-sequences.

    The function gets the sequences, the recurrent outputs and the non-sequences one by one.
    """
    distinct = list(dict.fromkeys(non_sequences))
    where = [distinct.index(v) for v in non_sequences]

    def step(*args):
        first = len(args) - len(distinct)
        return function(*args[:first], *(args[first + i] for i in where))

    out = scan(
        step,
        sequences=list(sequences),
        outputs_info=list(outputs_info),
        non_sequences=distinct,
        n_steps=n_steps,
        strict=True,
        return_updates=False,
    )
    return out if isinstance(out, list) else [out]
