"""The model that a run has sampled, derived from the one that its user has written."""

import json
from typing import Any

from pymc.model import Model
from xarray import Dataset

from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.gradients.all_rows import model_of_all_rows
from pymc_sgmcmc.gradients.row_gradients import RowGradients
from pymc_sgmcmc.gradients.value_draws import value_draws
from pymc_sgmcmc.integration.group_gradients import GroupGradients
from pymc_sgmcmc.integration.integrated_model import IntegratedModel, integrated_model
from pymc_sgmcmc.integration.missing_outcomes import of_observed_rows
from pymc_sgmcmc.integration.quadrature_points import rule_of
from pymc_sgmcmc.integration.whether_to_integrate import pads_groups, terms_to_integrate
from pymc_sgmcmc.run.pymc_sample import is_bambi


def as_sampled(model: Model, posterior: Dataset, data: Any) -> Model:
    """Return a model without missing outcomes and the effects that a run has integrated out.

    ``posterior`` is from that run; its attributes name the effects. The integrals are taken around
    the mean of its draws.
    """
    if is_bambi(model):
        raise ValueError(
            "A Bambi result has the intercept of predictors that are not centred, unlike the model "
            "that Bambi samples: call diagnose(idata) or certificate(idata) without a model, which "
            "show what sample found. To evaluate anew, build with center_predictors=False and pass "
            "bambi_model.backend.model."
        )
    model = of_observed_rows(model_of_all_rows(model))
    adaptation = json.loads(posterior.attrs.get("adaptation", "{}"))
    names = adaptation.get("integrated", [])
    if not names:
        return model
    streamed = None if data is None else StreamedData.of(data)
    try:
        terms = terms_to_integrate(model, names, None, predicts=False, data=streamed)
    except ValueError as error:
        effects = ", ".join(f"'{name}'" for name in names)
        raise ValueError(
            f"The draws are of a model with {effects} integrated out of the likelihood, which this "
            f"one does not allow ({error}): pass the model that was sampled."
        ) from error
    assert terms is not None
    points = rule_of(terms.k, adaptation["refined"], adaptation["equally_spaced"])
    integrated = integrated_model(terms, points, adaptation["follow_prior"], pads_groups(None))
    draws = value_draws(integrated, integrated.continuous_value_vars, posterior)
    integrated.settle(draws.mean(axis=(0, 1)))
    return integrated


def row_gradients(model: Model, data: Any) -> RowGradients:
    """Return gradients of single rows; each row is a group if effects are integrated out."""
    vars = list(model.continuous_value_vars)
    if isinstance(model, IntegratedModel):
        return GroupGradients(model, vars)
    return RowGradients(model, vars, data=None if data is None else StreamedData.of(data))
