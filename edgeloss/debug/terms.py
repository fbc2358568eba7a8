"""From a call of an EdgeAwareLoss to value and gradient of each of its terms."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from edgeloss import reduction, reference, region
from edgeloss.debug.calls import LossCall
from edgeloss.debug.report import Finding
from edgeloss.debug.trees import Node, all_finite, first_line, make_node
from edgeloss.inputs import Given, check_inputs
from edgeloss.loss import EdgeAwareLoss
from edgeloss.options import Options


def evaluate_terms(call: LossCall, criterion: EdgeAwareLoss) -> Node:
    """Evaluate each term with a weight > 0 separately, in plain PyTorch.

    Values exclude the weight of the term. They are computed from the maps of the terms, since setting the weights of
    the other terms to 0 would leave 0 · nan.
    """
    leaf = call.logits.clone().requires_grad_()
    try:
        losses = _losses(call, criterion, leaf)
    except Exception as error:  # of a subclass with other arguments
        return Node("terms", f"not evaluated; {first_line(error)}")
    nodes = []
    for name, loss in losses.items():
        (gradient,) = torch.autograd.grad(loss, leaf, retain_graph=True)
        nodes.append(Node(name, children=[make_node("loss", loss.detach()), make_node("gradient", gradient)]))
    return Node("terms", "each one separately, before its weight", children=nodes)


def _losses(call: LossCall, criterion: EdgeAwareLoss, leaf: Tensor) -> dict[str, Tensor]:
    """Return the value of each term that has a weight, with a graph."""
    options = replace(Options.from_attributes(criterion), sync_normalizer=False)
    tensors = {name: call.kwargs.get(name) for name in ("pixel_weight", "distance", "normalizer")}
    given = Given(criterion.weight, criterion.current_edge_class_weight, **tensors, is_counted=True)
    inputs = check_inputs(leaf, call.target.clone(), options, given)
    evaluation = reference.evaluate(inputs, options, edges=options.edge_weight > 0, maps=True)
    maps = cast("reduction.LossMaps", evaluation.maps)
    place, v = reduction.places_of_labels(inputs.labels()[0], inputs.tables), inputs.pixel_weight
    vu = reduction.edge_pixel_weight(place, maps.edge_mask, v, inputs.edge_class_weight)
    w, e = reduction.shared_denominators(reduction.scalars(evaluation.sums), evaluation.sums, inputs, options)
    totals = {
        "cross_entropy": (reference.weighted_total(maps.cross_entropy, v), w),
        "same_side": (reference.weighted_total(maps.same_side, vu), e),
        "other_side": (reference.weighted_total(maps.other_side, vu), e),
    }
    if options.region_weight:
        totals["region"] = torch.dot(*region.evaluate(inputs)[1]), w
    weights = options.term_weights()
    return {name: total * reduction.ratio(1.0, whole) for name, (total, whole) in totals.items() if weights[name]}


def blame_term(terms: Node, logits: Tensor) -> Finding:
    """Report which term of a loss that is not finite is the cause."""

    def bad_in(part: str) -> list[str]:
        lines = ((term.name, line.stats) for term in terms.children for line in term.children if line.name == part)
        return [name for name, stats in lines if stats is not None and stats.bad]

    # The terms share operations, and with them gradients of 0 · nan, but no values.
    bad = bad_in("loss") or bad_in("gradient")
    good = [term.name for term in terms.children if term.name not in bad]
    if not bad:
        message = "terms: each of them is finite by itself in plain PyTorch."
        return Finding("error", message, 'Check what a subclass adds, if there is one, and try backend="reference".')
    message = f"terms: {', '.join(bad)} not finite" + (f"; {', '.join(good)} finite." if good else ".")
    advice = f"Set the weight of {bad[0]} to 0 to continue without it."
    return Finding("error", message, advice if all_finite(logits) else "The logits are not finite; fix them first.")
