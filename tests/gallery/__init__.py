"""Forms of models as public galleries have them, each with what is expected of it.

One file a subject, one function a form: it builds the model, its decorator says whether batches of
rows are accepted, and of which rows, or refused, and why.
"""

from gallery import (
    bambi_families,
    bambi_formulas,
    custom_distributions,
    design_matrices,
    dims_models,
    discrete_choice,
    gaussian_processes,
    hierarchies,
    local_latents,
    minibatches,
    missing,
    mixtures,
    model_transforms,
    names,
    networks,
    ordinal,
    regression,
    splines_hsgp,
    survival,
    time_series,
    which_rows,
)

MODULES = [
    regression,
    design_matrices,
    hierarchies,
    ordinal,
    mixtures,
    discrete_choice,
    survival,
    custom_distributions,
    splines_hsgp,
    networks,
    time_series,
    gaussian_processes,
    missing,
    local_latents,
    which_rows,
    minibatches,
    model_transforms,
    names,
    dims_models,
    bambi_formulas,
    bambi_families,
]
